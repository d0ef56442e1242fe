"""Ollama's and llama.cpp's APIs behind a front: their routes, their streams where a replica dies, their errors."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from engine.interface.types import EngineState
from tests.fakes.engine_client import FakeEngineClient
from tests.server.conftest import RunningServer, StartServer, eventually
from tests.server.router.conftest import FRONT_KEY, RunningFront, StartFront

TEXT = "the tide comes in, é and 海 with it"
ADMIN = "sk-of-the-operator"
CHAT = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}]}
ROUTES: list[tuple[str, str, Any]] = [
    ("POST", "/api/chat", {**CHAT, "stream": False}),
    ("POST", "/api/chat", {"model": "fake", "messages": []}),
    ("POST", "/api/generate", {"model": "fake", "prompt": "Hi", "stream": False}),
    ("POST", "/api/embed", {"model": "fake", "input": "Hi"}),
    ("POST", "/api/embeddings", {"model": "fake", "prompt": "Hi"}),
    ("GET", "/api/tags", None),
    ("GET", "/api/ps", None),
    ("POST", "/api/show", {"model": "fake"}),
    ("GET", "/api/version", None),
    ("POST", "/api/pull", {"model": "fake"}),
    ("POST", "/chat/completions", {"messages": CHAT["messages"]}),
    ("POST", "/completion", {"prompt": "Hi"}),
    ("POST", "/completions", {"prompt": "Hi"}),
    ("POST", "/embedding", {"content": "Hi"}),
    ("POST", "/embeddings", {"content": "Hi"}),
    ("POST", "/apply-template", {"messages": CHAT["messages"]}),
    ("POST", "/tokenize", {"content": "Hi"}),
    ("GET", "/props", None),
    ("GET", "/slots", None),
    ("GET", "/lora-adapters", None),
    ("GET", "/models", None),
    ("POST", "/models/load", {"model": "fake"}),
]


@pytest.fixture
async def manual(start_server: StartServer, start_front: StartFront) -> RunningFront:
    """A front before two servers whose engines take the steps that a test asks for."""
    engines = [FakeEngineClient(is_manual=True) for _ in range(2)]
    servers = [await start_server(engine, front_key=FRONT_KEY) for engine in engines]
    return await start_front(servers, front_key=FRONT_KEY)


async def busy(front: RunningFront, but: RunningServer | None = None) -> RunningServer:
    def working() -> list[RunningServer]:
        return [server for server in front.servers.values() if server.engine.running and server is not but]

    await eventually(lambda: bool(working()))
    return working()[0]


async def read_while_a_replica_dies(front: RunningFront, path: str, body: dict[str, Any]) -> tuple[str, bytes]:
    """The content type and the bytes of a stream whose replica dies after some tokens."""
    received = bytearray()

    async def read() -> str:
        async with front.http.post(front.url + path, json=body) as response:
            assert response.status == 200, await response.text()
            async for piece in response.content.iter_any():
                received.extend(piece)
            return response.content_type

    reading = asyncio.ensure_future(read())
    first = await busy(front)
    first.engine.step(9)
    await eventually(lambda: b"\n" in received)
    await asyncio.sleep(0.02)
    await first.cut_connections()
    if body.get("resumable"):
        (await busy(front, first)).engine.step(99)
    content_type = await reading
    for server in front.servers.values():
        await server.served.streams.close()
    return content_type, bytes(received)


@pytest.mark.parametrize(("method", "path", "body"), ROUTES)
async def test_each_route_answers_as_a_server_does(
    start_server: StartServer, start_front: StartFront, method: str, path: str, body: Any
) -> None:
    server = await start_server()
    front = await start_front([server])
    for address in (server, front):
        async with address.http.request(method, address.url + path, json=body) as response:
            assert (response.status, response.content_type) == (200, "application/json"), await response.text()


@pytest.mark.parametrize(
    ("path", "asked"), [("/api/chat", CHAT), ("/api/generate", {"model": "fake", "prompt": TEXT, "raw": True})]
)
async def test_lines_go_on_at_another_replica_and_stay_lines(
    manual: RunningFront, path: str, asked: dict[str, Any]
) -> None:
    content_type, received = await read_while_a_replica_dies(manual, path, {**asked, "resumable": True})
    assert content_type == "application/x-ndjson"
    lines = [json.loads(line) for line in received.splitlines()]
    (undisturbed,) = {
        bytes(stream.prompt_token_ids) for server in manual.servers.values() for stream in server.engine.submitted
    }
    texts = [line["response"] if path == "/api/generate" else line["message"]["content"] for line in lines]
    assert "".join(texts) == undisturbed.decode()  # the fake engine repeats the prompt
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    ids = [line["event_id"].rpartition(":") for line in lines]
    assert [int(number) for _, _, number in ids] == list(range(1, len(ids) + 1))
    assert len({stream_id for stream_id, _, _ in ids}) == 1
    assert manual.router.num_moved == 1


async def test_a_resumable_line_names_where_to_go_on(server: RunningServer) -> None:
    async with server.http.post(server.url + "/api/chat", json={**CHAT, "resumable": True}) as response:
        lines = [json.loads(line) for line in (await response.text()).splitlines()]
    third = lines[2]["event_id"]
    url = f"{server.url}/v1/streams/{third.rpartition(':')[0]}"
    async with server.http.get(url, headers={"Last-Event-ID": third}) as response:
        assert response.content_type == "application/x-ndjson"
        assert [json.loads(line) for line in (await response.text()).splitlines()] == lines[3:]
    await server.served.streams.close()


async def test_llama_cpps_stream_goes_on_at_another_replica(manual: RunningFront) -> None:
    body = {"prompt": TEXT, "stream": True, "resumable": True}
    content_type, received = await read_while_a_replica_dies(manual, "/completion", body)
    assert content_type == "text/event-stream"
    events = [line.removeprefix(b"data: ") for line in received.splitlines() if line.startswith(b"data: ")]
    chunks = [json.loads(event) for event in events]
    assert "".join(chunk["content"] for chunk in chunks) == TEXT
    assert (chunks[-1]["stop"], chunks[-1]["stop_type"]) == (True, "eos")
    assert manual.router.num_moved == 1


async def test_lines_whose_replica_is_lost_end_with_an_error_line(manual: RunningFront) -> None:
    content_type, received = await read_while_a_replica_dies(manual, "/api/chat", CHAT)
    assert content_type == "application/x-ndjson"
    *lines, last = [json.loads(line) for line in received.splitlines()]
    assert lines
    assert last.keys() == {"error"}
    assert "lost" in last["error"]


@pytest.mark.parametrize(
    ("method", "path", "keys"),
    [
        ("POST", "/api/chat", {"error"}),
        ("POST", "/api/show", {"error"}),
        ("GET", "/api/ps", {"error"}),
        ("POST", "/completion", {"error"}),
        ("GET", "/props", {"error"}),
    ],
)
async def test_errors_of_the_front_itself_have_each_apis_form(
    start_front: StartFront, method: str, path: str, keys: set[str]
) -> None:
    front = await start_front([])
    async with front.http.request(method, front.url + path, json=CHAT) as response:
        answer = await response.json()
    assert (response.status, answer.keys()) == (503, keys)
    if path.startswith("/api/"):
        assert isinstance(answer["error"], str)
    else:
        assert answer["error"]["code"] == 503


async def test_every_replica_unloads(start_server: StartServer, start_front: StartFront) -> None:
    servers = [await start_server(admin_keys=(ADMIN,)) for _ in range(2)]
    front = await start_front(servers, admin_keys=(ADMIN,))
    engines = [server.engine for server in servers]
    url, body = front.url + "/models/unload", {"model": "fake"}
    async with front.http.post(url, json=body) as response:
        assert response.status == 401
    assert {engine.lifecycle.state for engine in engines} == {EngineState.RUNNING}
    async with front.http.post(url, json=body, headers={"Authorization": f"Bearer {ADMIN}"}) as response:
        assert (response.status, await response.json()) == (200, {"success": True})
    assert {engine.lifecycle.state for engine in engines} == {EngineState.ASLEEP}
