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
        "architecture": "fake",
        "num_parameters": 0,
        "max_model_len": 512,
        "dtype": "float32",
        "matmul_backend": "xla",
        "attention_backend": "xla",
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
