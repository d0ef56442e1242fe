"""A scripted MCP server, over HTTP in a test's loop, or as a process that is this file."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

TOOLS = [
    {
        "name": "add",
        "title": "Add",
        "description": "Adds two numbers.",
        "inputSchema": {"title": "addArguments", "type": "object", "properties": {"a": {"title": "A"}, "title": {}}},
    },
    {"name": "no schema!"},
    {"title": "has no name"},
]
RESULT = {"content": [{"type": "text", "text": "5"}, {"type": "image", "mimeType": "image/png", "data": ""}]}


def answer(message: dict[str, Any]) -> dict[str, Any] | None:
    """The answer to a message; None to a notification. The tools come in two pages."""
    if "id" not in message or "method" not in message:
        return None
    base = {"jsonrpc": "2.0", "id": message["id"]}
    match message["method"], message.get("params", {}):
        case "initialize", params:
            return base | {"result": {"protocolVersion": params["protocolVersion"], "capabilities": {}}}
        case "tools/list", {"cursor": "2"}:
            return base | {"result": {"tools": TOOLS[1:]}}
        case "tools/list", _:
            return base | {"result": {"tools": TOOLS[:1], "nextCursor": "2"}}
        case "tools/call", {"name": "add"}:
            return base | {"result": RESULT}
        case "tools/call", {"name": "rant"}:
            return base | {"error": {"code": 1, "message": "x" * 100_000}}
        case "tools/call", {"name": "fail"}:
            return base | {"result": {"content": [{"type": "text", "text": "no"}], "isError": True}}
    return base | {"error": {"code": -32602, "message": "unknown"}}


class HttpMcp:
    """Answers as `answer`, whole or as events, and remembers messages and headers."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.num_deleted = 0
        self.sends_events = False
        self.forgotten: set[str] = set()  # sessions
        self.hangs = False
        self.num_sessions = 0
        self.body: bytes | None = None  # in the place of every answer to a call
        self.url = ""

    async def handle(self, request: Any) -> Any:
        import asyncio

        from aiohttp import web

        if request.method == "DELETE":
            self.num_deleted += 1
            return web.Response()
        message = json.loads(await request.read())
        session = request.headers.get("Mcp-Session-Id")
        if session in self.forgotten:
            return web.Response(status=404)
        self.messages.append(message)
        self.headers.append(dict(request.headers))
        found = answer(message)
        if found is None:
            return web.Response(status=202)
        if message["method"] == "initialize":
            self.num_sessions += 1
            session = f"s{self.num_sessions}"
        is_call = message["method"] == "tools/call"
        if is_call and self.hangs:
            await asyncio.Event().wait()
        if is_call and self.body is not None:
            return web.Response(body=self.body, content_type="application/json")
        headers = {"Mcp-Session-Id": str(session)}
        if not self.sends_events:
            return web.json_response(found, headers=headers)
        ping = {"jsonrpc": "2.0", "id": "p", "method": "ping"}
        events = "".join(f"data: {json.dumps(each)}\r\n\r\n" for each in (ping, found))
        return web.Response(text=events, content_type="text/event-stream", headers=headers)

    @asynccontextmanager
    async def run(self) -> AsyncIterator[HttpMcp]:
        from aiohttp import web
        from aiohttp.test_utils import TestServer

        app = web.Application(client_max_size=1 << 25)
        app.router.add_route("*", "/mcp", self.handle)
        async with TestServer(app) as server:
            self.url = str(server.make_url("/mcp"))
            yield self


def write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Speaks over standard input and output; calls of `quit`, `sleep`, `flood` and `environment` do as they say."""
    import os

    write("not JSON")
    for line in sys.stdin:
        message = json.loads(line)
        match message:
            case {"method": "tools/call", "params": {"name": "quit"}}:
                sys.stderr.write("\x1b[31mlast words\n")
                sys.exit(3)
            case {"method": "tools/call", "params": {"name": "sleep"}}:
                time.sleep(0.2)
            case {"method": "tools/call", "params": {"name": "flood"}}:
                write("x" * (9 << 20))
            case {"method": "tools/call", "params": {"name": "environment"}, "id": message_id}:
                text = json.dumps([dict(os.environ), sys.argv[1:], os.getcwd()])
                body = {"jsonrpc": "2.0", "id": message_id, "result": {"content": [{"type": "text", "text": text}]}}
                write(json.dumps(body))
                continue
        found = answer(message)
        if found is not None:
            write(json.dumps(found))


if __name__ == "__main__":
    main()
