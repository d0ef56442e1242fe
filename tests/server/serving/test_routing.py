"""Requests go to the model that they name, on every route, and everything about a model bears its name."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.server.http.test_metrics import read_metrics
from tests.server.serving.conftest import Source, StartSeveral, prefixing
from tests.server.support.socket_client import open_socket, read_to_end, send
from tests.server.support.sse_reader import chunks_of

ADMIN = "admin-secret-3"


async def test_each_route_asks_the_named_model(start_several: StartSeveral) -> None:
    async with start_several("one two") as server:
        for model in ("one", "two"):
            status, body = await server.complete(model)
            assert (status, body["model"], body["choices"][0]["text"]) == (200, model, f"{model}:ab")
            body = {"model": model, "messages": [{"role": "user", "content": "x"}]}
            status, answer = await server.post("/v1/chat/completions", body)
            assert answer["model"] == model
            assert answer["choices"][0]["message"]["content"].startswith(f"{model}:")
            chunks = chunks_of(await server.stream_bytes("/v1/completions", {"prompt": "ab", "model": model}))
            assert {chunk["model"] for chunk in chunks} == {model}
            assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == f"{model}:ab"
        async with open_socket(server) as socket:
            for model in ("one", "two"):
                await send(socket, type="generate", id=model, model=model, prompt="ab")
            messages: list[Any] = []
            for model in ("one", "two"):
                messages += [] if _has_ended(messages, model) else await read_to_end(socket, model)
            for model in ("one", "two"):
                of_model = [message for message in messages if message["id"] == model]
                assert of_model[0]["model"] == model
                assert "".join(message.get("text", "") for message in of_model) == f"{model}:ab"


def _has_ended(messages: list[Any], client_id: str) -> bool:
    return any(message["id"] == client_id and message["type"] == "done" for message in messages)


async def test_no_name_means_the_first_and_a_strange_one_is_refused(start_several: StartSeveral) -> None:
    async with start_several("one two") as server:
        assert (await server.complete(None))[1]["model"] == "one"
        status, body = await server.complete("three")
        assert (status, body["error"]["code"], body["error"]["param"]) == (404, "model_not_found", "model")
        assert '"one", "two"' in body["error"]["message"]
        async with server.http.post(
            server.url + "/v1/completions", json={"prompt": "a", "stream": True, "model": "x"}
        ) as response:
            assert response.status == 404


async def test_all_models_are_listed_with_their_states(start_several: StartSeveral) -> None:
    async with start_several("one two three", models_max=2) as server:
        _, body = await server.get("/v1/models")
        assert [(entry["id"], entry["state"]) for entry in body["data"]] == [
            ("one", "ready"), ("two", "ready"), ("three", "unloaded"),
        ]  # fmt: skip
        assert [entry["status"] for entry in body["data"]] == [{"value": v} for v in ("loaded", "loaded", "unloaded")]
        _, props = await server.get("/props")
        assert (props["role"], props["max_instances"], props["models_autoload"]) == ("router", 2, True)
        assert "role" not in (await server.get("/props?model=two"))[1]
        assert [entry.get("max_model_len") for entry in body["data"]] == [512, 512, None]
        assert (await server.get("/v1/models/two"))[1]["id"] == "two"
        _, health = await server.get("/health")
        assert {name: model["state"] for name, model in health["models"].items()} == server.states()
        assert health["models"]["two"]["stats"]["num_running"] == 0
        status, readiness = await server.get("/readiness")
        assert (status, readiness["detail"]) == (
            200,
            "requests are accepted; one is ready, two is ready, three is unloaded",
        )


async def test_a_model_that_is_being_loaded_is_listed_with_what_is_being_done(start_several: StartSeveral) -> None:
    async with start_several("one two", loads_at_once=False) as server:
        server.sources["one"].may_load.set()
        await server.reach(one="ready", two="loading")
        _, body = await server.get("/v1/models")
        assert [entry.get("loading_stage") for entry in body["data"]] == [None, "starting"]
        assert body["data"][1]["status"] == {"value": "loading"}
        server.sources["two"].may_load.set()
        await server.reach(two="ready")
        assert "loading_stage" not in (await server.get("/v1/models/two"))[1]


async def test_the_server_is_ready_once_one_model_is(start_several: StartSeveral) -> None:
    async with start_several("one two", loads_at_once=False) as server:
        assert (await server.get("/readiness"))[0] == 503
        assert (await server.complete("two"))[1]["error"]["code"] == "loading"
        server.sources["one"].may_load.set()
        await server.reach(one="ready", two="loading")
        assert (await server.get("/readiness"))[0] == 200
        assert (await server.complete("one"))[0] == 200
        asking = asyncio.create_task(server.complete("two"))
        await asyncio.sleep(0.02)
        assert not asking.done()
        server.sources["two"].may_load.set()
        assert (await asking)[1]["choices"][0]["text"] == "two:ab"


async def test_figures_of_models_are_apart(start_several: StartSeveral) -> None:
    async with start_several("one two") as server:
        await server.complete("two", "abc")
        async with server.http.get(server.url + "/metrics") as response:
            lines = (await response.text()).splitlines()
        assert 'eagre_prompt_tokens_total{model="one"} 0.0' in lines
        assert 'eagre_prompt_tokens_total{model="two"} 3.0' in lines
        assert sum(line.startswith("eagre_asyncio_tasks ") for line in lines) == 1
        assert await read_metrics(server)  # it can be parsed  # type: ignore[arg-type]


async def test_operators_name_the_model(start_several: StartSeveral) -> None:
    async with start_several("one two", admin_keys=(ADMIN,)) as server:

        async def admin(call: str, body: Any) -> tuple[int, Any]:
            headers = {"Authorization": f"Bearer {ADMIN}"}
            async with server.http.post(f"{server.url}/admin/{call}", headers=headers, json=body) as response:
                return response.status, await response.json()

        assert await admin("pause", {"model": "two"}) == (200, {"state": "paused"})
        assert server.states() == {"one": "ready", "two": "paused"}
        assert (await server.complete("one"))[0] == 200
        assert await admin("resume", {"model": "two"}) == (200, {"state": "running"})
        assert await admin("sleep", {}) == (200, {"state": "asleep"})
        assert server.states() == {"one": "asleep", "two": "ready"}
        assert (await admin("wake", {"model": "none"}))[0] == 404
        assert await admin("wake", None) == (200, {"state": "running"})


async def test_a_failed_engine_fails_the_server(start_several: StartSeveral) -> None:
    async with start_several("one two") as server:
        server.engine("two").fail("the device is gone")
        assert (await server.get("/liveness"))[0] == 503
        assert (await server.complete("one"))[0] == 503
        assert server.states() == {"one": "ready", "two": "failed"}


async def test_a_model_that_is_added_takes_turns_with_those_that_were_there(start_several: StartSeveral) -> None:
    async with start_several("one two", models_max=1) as server:
        server.sources["three"] = Source(prefixing("three:"))
        server.sources["three"].may_load.set()
        server.served.add("three")
        assert server.states() == {"one": "ready", "two": "unloaded", "three": "unloaded"}
        assert (await server.complete("three"))[1]["choices"][0]["text"] == "three:ab"
        await server.reach(one="asleep")
        assert server.in_memory == ["three"]
        assert (await server.complete(None))[1]["choices"][0]["text"] == "one:ab"
        async with server.http.get(server.url + "/metrics") as response:
            assert 'eagre_prompt_tokens_total{model="three"} 2.0' in (await response.text()).splitlines()
        server.engine("three").shutdown()
