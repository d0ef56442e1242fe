"""Adapters on the wire: chosen by `model`, listed with their parent, loaded and dropped by operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from server.startup.settings import SettingsError
from tests.server.conftest import RunningServer, StartServer

ADMIN = {"Authorization": "Bearer operator-key-1"}
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


async def post(server: RunningServer, path: str, body: dict[str, Any], headers: dict[str, str]) -> tuple[int, str]:
    async with server.http.post(server.url + path, json=body, headers=headers) as response:
        return response.status, await response.text()


@pytest.fixture
async def adapted(start_server: StartServer, tmp_path: Path) -> RunningServer:
    """A server with one adapter and room for two."""
    (tmp_path / "review").mkdir()
    server = await start_server(
        lora=(f"review={tmp_path / 'review'}",), enable_lora=True, admin_keys=("operator-key-1",)
    )
    server.served.first.adapters.open(server.engine.client, 2, {})
    return server


async def test_a_request_chooses_an_adapter_by_its_name(adapted: RunningServer) -> None:
    for name in ("review", "fake", None):
        body = {"prompt": "a", "max_tokens": 1} | ({} if name is None else {"model": name})
        status, answer = await adapted.post("/v1/completions", body)
        assert (status, answer["model"]) == (200, name or "fake")
    chosen, *others = adapted.engine.adapters
    assert chosen is not None
    assert chosen.digest == "review"
    assert others == [None, None]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}),
        ("/v1/responses", {"input": "a"}),
        ("/api/chat", {"messages": [{"role": "user", "content": "a"}], "stream": False}),
    ],
)
async def test_every_protocol_says_the_name_of_the_adapter(
    adapted: RunningServer, path: str, body: dict[str, Any]
) -> None:
    status, answer = await adapted.post(path, {**body, "model": "review"})
    assert (status, answer["model"]) == (200, "review")
    assert adapted.engine.adapters[-1] is not None


async def test_adapters_are_listed_with_their_parent(adapted: RunningServer) -> None:
    _, body = await adapted.get("/v1/models")
    assert [each["id"] for each in body["data"]] == ["fake", "review"]
    entry = body["data"][1]
    assert (entry["parent"], entry["root"], entry["max_model_len"]) == ("fake", "review", 512)
    assert (await adapted.get("/v1/models/review"))[1] == entry
    assert (await adapted.get("/lora-adapters"))[1] == [{"id": 0, "path": "review", "scale": 0.0}]


async def test_llama_cpps_requests_say_how_much_of_an_adapter(adapted: RunningServer) -> None:
    body = {"prompt": "a", "n_predict": 1, "lora": [{"id": 0, "scale": 0.5}]}
    status, answer = await adapted.post("/completion", body)
    assert (status, answer["generation_settings"]["lora"]) == (200, [{"id": 0, "scale": 0.5}])
    chosen = adapted.engine.adapters[-1]
    assert chosen is not None
    assert (chosen.digest, chosen.scale) == ("review", 0.5)
    for nothing in ([], [{"id": 0, "scale": 0}]):
        assert (await adapted.post("/completion", {**body, "lora": nothing}))[0] == 200
        assert adapted.engine.adapters[-1] is None
    for lora, words in (
        ([{"id": 1, "scale": 1}], "the model has 1 adapters"),
        ([{"id": 0, "scale": 1e30}], "lora"),
        ([{"id": -1, "scale": 1}], "lora"),
        ("review", "lora"),
    ):
        status, answer = await adapted.post("/completion", {**body, "lora": lora})
        assert status == 400
        assert words in answer["error"]["message"]


async def test_no_client_sets_the_scales_of_all_others(adapted: RunningServer) -> None:
    for headers in ({}, ADMIN):
        async with adapted.http.post(
            adapted.url + "/lora-adapters", json=[{"id": 0, "scale": 1.0}], headers=headers
        ) as response:
            error = (await response.json())["error"]
            assert (response.status, response.headers["Allow"]) == (405, "GET, HEAD")
        assert error["message"] == (
            "/lora-adapters does not take POST; it takes GET, HEAD. Adapters have no scales for all clients here: a "
            "request chooses one by its name in model, or by its id with a scale in lora"
        )
    assert (await adapted.get("/lora-adapters"))[1] == [{"id": 0, "path": "review", "scale": 0.0}]
    assert (await adapted.post("/v1/completions", {"prompt": "a", "max_tokens": 1}))[0] == 200
    assert adapted.engine.adapters[-1] is None


async def test_the_metrics_tell_of_adapters(adapted: RunningServer) -> None:
    async with adapted.http.get(adapted.url + "/metrics") as response:
        lines = (await response.text()).splitlines()
    (line,) = (line for line in lines if line.startswith("eagre_lora_requests_info{"))
    assert 'max_lora="2",model="fake",running_lora_adapters="",waiting_lora_adapters=""' in line


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a", "max_tokens": 1}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}),
        ("/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}),
        ("/v1/responses", {"input": "a", "store": False}),
    ],
)
async def test_requests_of_other_routes_say_how_much_of_an_adapter_too(
    adapted: RunningServer, path: str, body: dict[str, Any]
) -> None:
    assert (await adapted.post(path, {**body, "lora": [{"id": 0, "scale": -0.5}]}))[0] == 200
    chosen = adapted.engine.adapters[-1]
    assert chosen is not None
    assert (chosen.digest, chosen.scale) == ("review", -0.5)
    assert (await adapted.post(path, {**body, "lora": []}))[0] == 200
    assert adapted.engine.adapters[-1] is None
    status, answer = await adapted.post(path, {**body, "model": "review", "lora": [{"id": 0, "scale": 1}]})
    assert (status, answer["error"]["param"]) == (400, "lora")


async def test_an_adapter_makes_no_embeddings(adapted: RunningServer) -> None:
    status, body = await adapted.post("/v1/embeddings", {"input": "a", "model": "review"})
    assert (status, body["error"]["code"], body["error"]["param"]) == (400, "unsupported_task", "model")
    assert (await adapted.post("/v1/score", {"text_1": "a", "text_2": "b", "model": "review"}))[0] == 400


async def test_operators_load_and_drop_adapters(adapted: RunningServer, tmp_path: Path) -> None:
    body = {"lora_name": "more", "lora_path": str(tmp_path / "more")}
    assert await post(adapted, LOAD, body, ADMIN) == (200, "Success: LoRA adapter 'more' added successfully.")
    assert (await adapted.post("/v1/completions", {"prompt": "a", "max_tokens": 1, "model": "more"}))[0] == 200
    assert (await post(adapted, LOAD, body, ADMIN))[0] == 400  # it is there
    assert (await post(adapted, LOAD, {**body, "load_inplace": True}, ADMIN))[0] == 200
    assert await post(adapted, UNLOAD, {"lora_name": "more"}, ADMIN) == (
        200,
        "Success: LoRA adapter 'more' removed successfully.",
    )
    assert (await adapted.post("/v1/completions", {"prompt": "a", "max_tokens": 1, "model": "more"}))[0] == 404
    assert (await post(adapted, UNLOAD, {"lora_name": "more"}, ADMIN))[0] == 404


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"lora_name": "x", "lora_path": "/somewhere/bad"}, "cannot be used"),
        ({"lora_name": "", "lora_path": "/x"}, "lora_name"),
        ({"lora_name": "x" * 300, "lora_path": "/x"}, "lora_name"),
        ({"lora_name": "a\r\nb", "lora_path": "/x"}, "lora_name"),
        ({"lora_name": "fake", "lora_path": "/x"}, "name of a model"),
        ({"lora_name": "x", "lora_path": ""}, "lora_path"),
        ({"lora_name": "x"}, "lora_path"),
        ({"lora_name": "x", "lora_path": "/x", "rank": 3}, "rank"),
    ],
)
async def test_bad_calls_name_what_is_wrong(adapted: RunningServer, body: dict[str, Any], words: str) -> None:
    status, text = await post(adapted, LOAD, body, ADMIN)
    assert status == 400
    assert words in text


async def test_others_cannot_load_or_drop(adapted: RunningServer, start_server: StartServer) -> None:
    body = {"lora_name": "x", "lora_path": "/x"}
    for path in (LOAD, UNLOAD):
        assert (await post(adapted, path, body, {}))[0] in (401, 403, 404)
    closed = await start_server(admin_keys=("operator-key-1",))
    status, text = await post(closed, LOAD, body, ADMIN)
    assert (status, "--enable-lora" in text) == (400, True)


async def test_a_folder_that_is_not_there_ends_the_start(start_server: StartServer, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="there is no such folder"):
        await start_server(lora=(f"x={tmp_path / 'missing'}",))
