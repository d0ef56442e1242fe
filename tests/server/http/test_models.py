"""The routes that list the served model."""

from __future__ import annotations

from tests.fakes.text_model import FakeTextModel
from tests.server.conftest import RunningServer, StartServer


async def test_models(server: RunningServer) -> None:
    _, body = await server.get("/v1/models")
    (model,) = body["data"]
    created = model.pop("created")
    assert isinstance(created, int)
    assert body["object"] == "list"
    assert model == {
        "id": "fake",
        "object": "model",
        "owned_by": "eagre",
        "state": "ready",
        "status": {"value": "loaded"},
        "architecture": "fake",
        "num_parameters": 0,
        "max_model_len": 512,
        "dtype": "float32",
        "matmul_backend": "xla",
        "attention_backend": "xla",
        "modalities": ["text"],
    }
    assert (await server.get("/v1/models/fake"))[1] == {**model, "created": created}
    status, body = await server.get("/v1/models/org/other")
    assert (status, body["error"]["code"], body["error"]["param"]) == (404, "model_not_found", "model")


async def test_the_served_name_is_the_users(start_server: StartServer) -> None:
    server = await start_server(served_model_name="org/mine")
    assert (await server.get("/v1/models/org/mine"))[1]["id"] == "org/mine"
    assert (await server.post("/v1/completions", {"prompt": "a", "model": "org/mine"}))[1]["model"] == "org/mine"
    assert (await server.post("/v1/completions", {"prompt": "a", "model": "fake"}))[0] == 404


async def test_what_the_model_recommends_is_shown_and_holds(start_server: StartServer) -> None:
    server = await start_server(text_model=FakeTextModel(temperature=0.2, top_k=5))
    assert (await server.get("/v1/models/fake"))[1]["sampling_defaults"] == {"temperature": 0.2, "top_k": 5}
    await server.post("/v1/completions", {"prompt": "a", "max_tokens": 1, "top_k": 0})
    await server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "temperature": None})
    told = [(stream.params.temperature, stream.params.top_k) for stream in server.engine.submitted]
    assert told == [(0.2, 0), (0.2, 5)]


async def test_codex_finds_its_catalogue(server: RunningServer) -> None:
    _, body = await server.get("/v1/models?client_version=0.171.0")
    (entry,) = body["models"]
    assert (entry["slug"], entry["context_window"], entry["input_modalities"]) == ("fake", 512, ["text"])
    assert entry["truncation_policy"] == {"mode": "tokens", "limit": 128}
    assert entry["apply_patch_tool_type"] == "freeform"
    assert entry["supported_reasoning_levels"] == []


async def test_anthropics_clients_get_anthropics_list(server: RunningServer) -> None:
    headers = {"anthropic-version": "2023-06-01"}
    async with server.http.get(server.url + "/v1/models", headers=headers) as response:
        body = await response.json()
    (model,) = body["data"]
    assert (model["type"], model["id"], model["display_name"]) == ("model", "fake", "fake")
    assert model["created_at"].endswith("Z")
    assert (body["has_more"], body["first_id"], body["last_id"]) == (False, "fake", "fake")
    async with server.http.get(server.url + "/v1/models/fake", headers=headers) as response:
        assert await response.json() == model


async def test_hello(server: RunningServer) -> None:
    assert await server.get("/api/hello") == (200, {"message": "hello"})
    async with server.http.head(server.url + "/") as response:
        assert response.status == 200
