"""The client of MCP servers, over HTTP and with processes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from server.cli.tools import mcp_client
from server.cli.tools.http_transport import HttpTransport
from server.cli.tools.mcp_client import McpClient
from server.cli.tools.stdio_transport import StdioTransport
from server.cli.tools.tool import Result, Tool
from server.cli.tools.transport import MAX_ANSWER_BYTES, McpError
from tests.server.cli.tools.scripted_mcp import HttpMcp
from tests.server.conftest import eventually

SCRIPT = str(Path(__file__).with_name("scripted_mcp.py"))
ADD = Tool("add", "Adds two numbers.", {"type": "object", "properties": {"a": {}, "title": {}}})
SUM = Result("5\n[image/png that the model cannot read]")


def over_http(server: HttpMcp) -> McpClient:
    return McpClient("docs", HttpTransport("docs", server.url, {"Authorization": "Bearer k"}))


def over_stdio(*more: str, folder: str | None = None) -> McpClient:
    return McpClient("files", StdioTransport("files", (sys.executable, SCRIPT, *more), {"OWN": "1"}, folder))


@pytest.mark.parametrize("sends_events", [False, True])
async def test_tools_are_listed_and_called_in_one_session(sends_events: bool) -> None:
    async with HttpMcp().run() as server:
        server.sends_events = sends_events
        client = over_http(server)
        assert await client.list_tools() == [ADD, Tool("no schema!", "", {"type": "object"})]
        assert await client.call_tool("add", {"a": 2}) == SUM
        assert await client.call_tool("fail", {}) == Result("no", is_error=True)
        with pytest.raises(McpError, match="docs: unknown"):
            await client.call_tool("other", {})
        with pytest.raises(McpError, match=r"docs: x{500}…$"):
            await client.call_tool("rant", {})
        await client.close()
        methods = [message["method"] for message in server.messages if "method" in message]
        assert methods[:2] == ["initialize", "notifications/initialized"]
        assert server.messages[0]["params"]["protocolVersion"] == "2025-06-18"
        calls = [message["params"] for message in server.messages if message.get("method") == "tools/call"]
        assert calls[0] == {"name": "add", "arguments": {"a": 2}}
        assert all(headers["Authorization"] == "Bearer k" for headers in server.headers)
        assert "Mcp-Session-Id" not in server.headers[0]
        last = server.headers[-1]
        assert (last["Mcp-Session-Id"], last["Mcp-Protocol-Version"]) == ("s1", "2025-06-18")
        assert server.num_sessions == server.num_deleted == 1
        pongs = [message for message in server.messages if message.get("id") == "p"]
        assert all(pong["result"] == {} for pong in pongs)
        assert bool(pongs) == sends_events


async def test_a_session_that_the_server_has_ended_begins_again() -> None:
    async with HttpMcp().run() as server:
        client = over_http(server)
        await client.list_tools()
        server.forgotten.add("s1")
        assert await client.call_tool("add", {}) == SUM
        assert server.num_sessions == 2
        await client.close()


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"x" * (MAX_ANSWER_BYTES + 1), "8388608 bytes"),
        (b"no JSON", "has not answered tools/call"),
        (b"[" * 5000 + b"]" * 5000, "has not answered tools/call"),
        (b'{"jsonrpc": "2.0", "id": 4, "result": ' + b"[" * 200 + b"]" * 200 + b"}", "has not answered tools/call"),
    ],
)
async def test_an_answer_that_is_too_large_or_no_answer_is_an_error(body: bytes, says: str) -> None:
    async with HttpMcp().run() as server:
        client = over_http(server)
        await client.list_tools()
        server.body = body
        with pytest.raises(McpError, match=says):
            await client.call_tool("add", {})
        await client.close()


async def test_a_call_that_is_stopped_or_takes_too_long_is_cancelled_at_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with HttpMcp().run() as server:
        client = over_http(server)
        await client.list_tools()
        server.hangs = True

        def cancelled() -> list[int]:
            return [
                message["params"]["requestId"]
                for message in server.messages
                if message.get("method") == "notifications/cancelled"
            ]

        call = asyncio.create_task(client.call_tool("add", {}))
        await eventually(lambda: server.messages[-1].get("method") == "tools/call")
        first = server.messages[-1]["id"]
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert cancelled() == [first]
        monkeypatch.setattr(mcp_client, "CALL_S", 0.05)
        with pytest.raises(McpError, match=r"within 0\.05 s"):
            await client.call_tool("add", {})
        assert len(cancelled()) == 2
        await client.close()


async def test_a_server_that_is_not_there_is_named() -> None:
    client = McpClient("docs", HttpTransport("docs", "http://127.0.0.1:1/mcp", {}))
    with pytest.raises(McpError, match="docs cannot be reached"):
        await client.list_tools()
    await client.close()


async def test_a_process_is_started_without_a_shell_and_gets_only_its_own_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGRE_API_KEY", "sk-secret")
    client = over_stdio("$(exit)", "a b", folder=str(tmp_path))
    assert (await client.list_tools())[0] == ADD
    assert await client.call_tool("add", {}) == SUM
    environment, arguments, folder = json.loads((await client.call_tool("environment", {})).text)
    assert arguments == ["$(exit)", "a b"]
    assert folder == str(tmp_path)
    assert environment["OWN"] == "1"
    assert environment["PATH"] == os.environ["PATH"]
    assert "EAGRE_API_KEY" not in environment
    await client.close()


async def test_a_process_that_ends_is_named_with_its_last_words_and_started_again() -> None:
    client = over_stdio()
    with pytest.raises(McpError, match=r"files has ended: .*last words"):
        await client.call_tool("quit", {})
    assert await client.call_tool("add", {}) == SUM
    await client.close()


async def test_the_answer_of_a_call_that_was_stopped_is_not_that_of_the_next_one() -> None:
    client = over_stdio()
    await client.list_tools()
    call = asyncio.create_task(client.call_tool("sleep", {}))
    await asyncio.sleep(0.05)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await client.call_tool("add", {}) == SUM
    await client.close()


async def test_a_line_that_is_too_long_is_an_error() -> None:
    client = over_stdio()
    with pytest.raises(McpError, match="8388608 bytes"):
        await client.call_tool("flood", {})
    assert await client.call_tool("add", {}) == SUM
    await client.close()


async def test_a_command_that_does_not_exist_is_named() -> None:
    client = McpClient("files", StdioTransport("files", ("/nonexistent/mcp",), {}, None))
    with pytest.raises(McpError, match="files cannot be started: No such file"):
        await client.list_tools()
    await client.close()


async def test_a_process_that_does_not_end_is_ended(tmp_path: Path) -> None:
    started = tmp_path / "pid"
    lines = f"import os,signal,time; open({str(started)!r},'w').write(str(os.getpid()))"
    code = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {lines}; time.sleep(600)"
    transport = StdioTransport("files", (sys.executable, "-c", code), {}, None)
    await transport.open()
    await eventually(lambda: started.exists() and bool(started.read_text()))
    await transport.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)
