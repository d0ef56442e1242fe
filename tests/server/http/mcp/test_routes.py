"""Messages to MCP servers, which pages send through this server."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from server.http.mcp import routes, upstream
from tests.patience import PATIENCE_S
from tests.server.conftest import RunningServer, StartServer, eventually

CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "add", "arguments": {"a": 1}}}
RESULT = {"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": "2"}]}}
KEY = "client-key-0001"


class McpServer:
    """A server that answers every message as `answer` does, and remembers what it got."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.answer: Callable[[web.Request], Awaitable[web.StreamResponse]] = self.whole
        self.num_open = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, dict(request.headers), await request.read()))
        self.num_open += 1
        try:
            return await self.answer(request)
        finally:
            self.num_open -= 1

    async def whole(self, _request: web.Request) -> web.StreamResponse:
        return web.json_response(RESULT, headers={"Mcp-Session-Id": "s-1"})

    async def events(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Mcp-Session-Id": "s-2"})
        await response.prepare(request)
        for part in (
            'event: message\r\ndata: {"progress"',
            ": 1}\r\n\r",
            "\n",
            f"data: {json.dumps(RESULT)}\n\n",
            "data: cut",
        ):
            await response.write(part.encode())
            await asyncio.sleep(0.01)
        return response

    async def hang(self, _request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async def huge(self, _request: web.Request) -> web.StreamResponse:
        return web.Response(body=b"x" * (upstream.MAX_ANSWER_BYTES + 1), content_type="application/json")

    async def encoded(self, request: web.Request) -> web.StreamResponse:
        assert request.headers["Accept-Encoding"] == "identity"
        body = gzip.compress(json.dumps(RESULT).encode())
        return web.Response(body=body, headers={"Content-Encoding": "gzip"}, content_type="application/json")

    async def redirect(self, _request: web.Request) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": "http://127.0.0.1:1/"})

    async def no_access(self, _request: web.Request) -> web.StreamResponse:
        return web.Response(status=401, text="bad token")

    async def no_session(self, _request: web.Request) -> web.StreamResponse:
        return web.json_response({"jsonrpc": "2.0", "error": {"code": -32001, "message": "gone"}}, status=404)

    async def accepted(self, _request: web.Request) -> web.StreamResponse:
        return web.Response(status=202)


@pytest.fixture
async def mcp(tmp_path: Path) -> AsyncIterator[tuple[McpServer, str]]:
    """The server, and the path of a file that names it."""
    server = McpServer()
    app = web.Application()
    app.router.add_route("*", "/mcp", server.handle)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    path = tmp_path / "mcp.json"
    entry = {"url": f"http://127.0.0.1:{runner.addresses[0][1]}/mcp", "headers": {"Authorization": "Bearer theirs"}}
    path.write_text(json.dumps({"mcpServers": {"sums": entry, "gone": {"url": "http://127.0.0.1:1/mcp"}}}))
    yield server, str(path)
    await runner.cleanup()


async def send(server: RunningServer, name: str = "sums", **headers: str) -> tuple[int, dict[str, str], bytes]:
    async with server.http.post(f"{server.url}/v1/mcp/{name}", json=CALL, headers=headers) as answer:
        return answer.status, dict(answer.headers), await answer.read()


async def test_a_message_and_its_answer_pass_unchanged(mcp: tuple[McpServer, str], start_server: StartServer) -> None:
    upstream_server, path = mcp
    server = await start_server(mcp_config=path, api_keys=(KEY,))
    own = {"Authorization": f"Bearer {KEY}", "Cookie": "a=b", "Mcp-Protocol-Version": "2025-06-18"}
    status, headers, body = await send(server, **own)
    assert (status, json.loads(body)) == (200, RESULT)
    await send(server, **own, **{"Mcp-Session-Id": headers["Mcp-Session-Id"]})
    [_, (_, sent, asked)] = upstream_server.requests
    assert json.loads(asked) == CALL
    assert sent["Authorization"] == "Bearer theirs"
    assert (sent["Mcp-Session-Id"], sent["Mcp-Protocol-Version"]) == ("s-1", "2025-06-18")
    assert "Cookie" not in sent
    assert KEY not in str(sent)


async def test_a_session_is_for_the_key_alone_that_has_begun_it(
    mcp: tuple[McpServer, str], start_server: StartServer
) -> None:
    server = await start_server(mcp_config=mcp[1], api_keys=(f"{KEY} ann", "client-key-0002 bob"))
    ann, bob = {"Authorization": f"Bearer {KEY}"}, {"Authorization": "Bearer client-key-0002"}
    _, headers, _ = await send(server, **ann)
    begun = {"Mcp-Session-Id": headers["Mcp-Session-Id"]}
    for session in (begun, {"Mcp-Session-Id": "s-1"}):
        status, _, body = await send(server, **bob, **session)
        assert (status, json.loads(body)["error"]["code"]) == (404, "mcp_session_not_found")
        async with server.http.delete(f"{server.url}/v1/mcp/sums", headers=bob | session) as answer:
            assert answer.status == 404
    assert len(mcp[0].requests) == 1
    assert (await send(server, **ann, **begun))[0] == 200


async def test_servers_are_listed_by_their_names_alone(mcp: tuple[McpServer, str], start_server: StartServer) -> None:
    server = await start_server(mcp_config=mcp[1])
    status, listed = await server.get("/v1/mcp")
    assert (status, [entry["id"] for entry in listed["data"]]) == (200, ["sums", "gone"])
    assert "theirs" not in str(listed)
    assert "127.0.0.1" not in str(listed)


async def test_events_pass_whole_and_a_cut_one_is_left_out(
    mcp: tuple[McpServer, str], start_server: StartServer
) -> None:
    mcp[0].answer = mcp[0].events
    server = await start_server(mcp_config=mcp[1])
    status, headers, body = await send(server)
    assert (status, headers["Mcp-Session-Id"]) == (200, "s-2")
    assert headers["Content-Type"].startswith("text/event-stream")
    data = [line[6:] for line in body.decode().splitlines() if line.startswith("data: ")]
    assert [json.loads(line) for line in data] == [{"progress": 1}, RESULT]


async def test_a_session_is_ended(mcp: tuple[McpServer, str], start_server: StartServer) -> None:
    mcp[0].answer = mcp[0].accepted
    server = await start_server(mcp_config=mcp[1])
    async with server.http.delete(f"{server.url}/v1/mcp/sums", headers={"Mcp-Session-Id": "s-1"}) as answer:
        assert answer.status == 202
    assert [(method, headers["Mcp-Session-Id"]) for method, headers, _ in mcp[0].requests] == [("DELETE", "s-1")]


@pytest.mark.parametrize(
    ("behaviour", "status", "says"),
    [
        ("huge", 502, "8388608"),
        ("encoded", 502, "encodes its answer"),
        ("redirect", 502, "redirects"),
        ("no_access", 502, "refuses the key"),
        ("no_session", 404, "gone"),
        ("accepted", 202, ""),
    ],
)
async def test_what_a_server_may_answer(
    mcp: tuple[McpServer, str], start_server: StartServer, behaviour: str, status: int, says: str
) -> None:
    mcp[0].answer = getattr(mcp[0], behaviour)
    server = await start_server(mcp_config=mcp[1])
    found, _, body = await send(server)
    assert found == status
    assert says in body.decode()
    assert "bad token" not in body.decode()


@pytest.fixture
async def rude(tmp_path: Path) -> AsyncIterator[Callable[[bytes], Awaitable[str]]]:
    """Starts a server that answers with some bytes and closes; gives the path of a file that names it."""
    servers: list[asyncio.Server] = []

    async def start(answer: bytes) -> str:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
            writer.close()

        servers.append(await asyncio.start_server(handle, "127.0.0.1", 0))
        url = f"http://127.0.0.1:{servers[-1].sockets[0].getsockname()[1]}/mcp"
        path = tmp_path / "rude.json"
        path.write_text(json.dumps({"mcpServers": {"sums": {"url": url}}}))
        return str(path)

    yield start
    for each in servers:
        each.close()


@pytest.mark.parametrize("status", ["000", "101", "600", "999"])
async def test_a_status_that_ends_no_request_is_not_passed_on(
    rude: Callable[[bytes], Awaitable[str]], start_server: StartServer, status: str
) -> None:
    path = await rude(
        f"HTTP/1.1 {status} Odd\r\nUpgrade: x\r\nConnection: upgrade\r\nContent-Length: 2\r\n\r\n{{}}".encode()
    )
    server = await start_server(mcp_config=path)
    found, _, body = await send(server)
    assert (found, json.loads(body)["error"]["code"]) == (502, "mcp_server_failed")
    async with server.http.delete(f"{server.url}/v1/mcp/sums") as answer:
        assert answer.status == 502


async def test_events_that_are_cut_leave_no_client_waiting(
    rude: Callable[[bytes], Awaitable[str]], start_server: StartServer
) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 200\r\n\r\n"
    server = await start_server(mcp_config=await rude(head + b"data: 1\n\n"))
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(aiohttp.ClientPayloadError):
            await send(server)


async def test_servers_that_are_not_there(mcp: tuple[McpServer, str], start_server: StartServer) -> None:
    server, without = await start_server(mcp_config=mcp[1]), await start_server()
    status, _, body = await send(server, "gone")
    assert (status, json.loads(body)["error"]["code"]) == (502, "mcp_server_failed")
    assert "127.0.0.1" not in body.decode()
    for asked, name in ((server, "none"), (without, "sums")):
        status, _, body = await send(asked, name)
        assert (status, json.loads(body)["error"]["param"]) == (404, "name")
    assert (await without.get("/v1/mcp"))[1]["data"] == []


async def test_strangers_reach_nothing(mcp: tuple[McpServer, str], start_server: StartServer) -> None:
    server = await start_server(mcp_config=mcp[1], api_keys=(KEY,))
    assert (await send(server))[0] == 401
    assert (await server.get("/v1/mcp"))[0] == 401
    assert not mcp[0].requests


async def test_a_client_that_leaves_breaks_its_call_off(mcp: tuple[McpServer, str], start_server: StartServer) -> None:
    mcp[0].answer = mcp[0].hang
    server = await start_server(mcp_config=mcp[1])
    call = asyncio.ensure_future(send(server))
    await eventually(lambda: mcp[0].num_open == 1)
    call.cancel()
    await eventually(lambda: mcp[0].num_open == 0)


async def test_calls_are_bounded(
    mcp: tuple[McpServer, str], start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "MAX_CALLS", 2)
    mcp[0].answer = mcp[0].hang
    server = await start_server(mcp_config=mcp[1])
    calls = [asyncio.ensure_future(send(server)) for _ in range(2)]
    await eventually(lambda: mcp[0].num_open == 2)
    status, headers, body = await send(server)
    assert (status, json.loads(body)["error"]["code"]) == (429, "too_many_mcp_calls")
    async with server.http.delete(f"{server.url}/v1/mcp/sums", headers={"Mcp-Session-Id": "s-1"}) as answer:
        assert answer.status == 429
    assert int(headers["Retry-After"]) > 0
    for call in calls:
        call.cancel()
    await eventually(lambda: mcp[0].num_open == 0)
    mcp[0].answer = mcp[0].whole
    assert (await send(server))[0] == 200


async def test_a_body_that_is_too_large_goes_nowhere(mcp: tuple[McpServer, str], start_server: StartServer) -> None:
    server = await start_server(mcp_config=mcp[1], max_body_bytes=1024)
    async with server.http.post(f"{server.url}/v1/mcp/sums", data=b"x" * 2000) as answer:
        assert answer.status == 413
    async with server.http.post(f"{server.url}/v1/mcp/sums", data=b"") as answer:
        assert answer.status == 400
    assert not mcp[0].requests


async def test_a_missing_file_is_told_at_the_start(start_server: StartServer, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mcp_config"):
        await start_server(mcp_config=str(tmp_path / "missing.json"))


async def test_a_head_that_is_no_head(mcp: tuple[McpServer, str], start_server: StartServer) -> None:
    """A session id of a client cannot bring a header of its own along."""
    server = await start_server(mcp_config=mcp[1])
    with pytest.raises((ValueError, aiohttp.ClientError)):
        await send(server, **{"Mcp-Session-Id": "a\r\nAuthorization: b"})
    assert not mcp[0].requests
