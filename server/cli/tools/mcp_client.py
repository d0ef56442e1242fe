"""A client of one MCP server (Model Context Protocol, revision 2025-06-18)."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import aclosing
from itertools import count
from typing import Any

from server.cli.tools.tool import Result, Tool, result_of, tool_of
from server.cli.tools.transport import PROTOCOL, McpError, SessionEnded, Transport, shortened

START_S = 60.0  # a process may have to be fetched first, as by npx
LIST_S = 30.0
CALL_S = 600.0
CANCEL_S = 2.0
MAX_PAGES = 20  # of a list of tools
MAX_TOOLS = 512

_METHOD_NOT_FOUND = -32601


class McpClient:
    """The tools of a server; a session begins with the first request, and again where the server has ended it."""

    def __init__(self, name: str, transport: Transport) -> None:
        self.name = name
        self._transport = transport
        self._is_open = False
        self._ids = count(1)

    async def list_tools(self) -> list[Tool]:
        tools: list[Tool] = []
        params: dict[str, Any] = {}
        for _ in range(MAX_PAGES):
            page = await self._request("tools/list", params, LIST_S)
            entries = page.get("tools")
            tools += filter(None, map(tool_of, entries if isinstance(entries, list) else []))
            if len(tools) > MAX_TOOLS:
                raise McpError(f"{self.name} has more than {MAX_TOOLS} tools, the limit")
            if not isinstance(page.get("nextCursor"), str):
                break
            params = {"cursor": page["nextCursor"]}
        return tools

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> Result:
        return result_of(await self._request("tools/call", {"name": name, "arguments": arguments}, CALL_S))

    async def close(self) -> None:
        await self._transport.close()

    async def _request(self, method: str, params: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        if self._is_open:
            try:
                return await self._send(method, params, timeout_s)
            except SessionEnded:
                self._is_open = False
        await self._initialize()
        return await self._send(method, params, timeout_s)

    async def _initialize(self) -> None:
        await self._transport.open()
        info = {"name": "eagre-chat", "version": "1"}
        params = {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": info}
        chosen = (await self._send("initialize", params, START_S)).get("protocolVersion")
        self._transport.set_protocol(chosen if isinstance(chosen, str) else PROTOCOL)
        await self._transport.notify({"jsonrpc": "2.0", "method": "notifications/initialized"})
        self._is_open = True

    async def _send(self, method: str, params: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        request_id = next(self._ids)
        message = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        try:
            async with asyncio.timeout(timeout_s), aclosing(self._transport.request(message)) as messages:
                async for found in messages:
                    if "method" in found:
                        await self._reply(found)
                    elif found.get("id") == request_id and "error" in found:
                        raise McpError(f"{self.name}: {_reason(found['error'])}")
                    elif found.get("id") == request_id and "result" in found:
                        return found["result"] if isinstance(found["result"], dict) else {}
        except TimeoutError as error:
            await self._cancel(request_id, "timeout")
            raise McpError(f"{self.name} has not answered {method} within {timeout_s:g} s") from error
        except asyncio.CancelledError:
            await self._cancel(request_id, "the user has stopped it")
            raise
        raise McpError(f"{self.name} has not answered {method}")

    async def _reply(self, found: dict[str, Any]) -> None:
        """Answers a request of the server: a ping is all that this client knows."""
        if not isinstance(found.get("id"), int | str):
            return  # a notification
        answer: dict[str, Any] = {"error": {"code": _METHOD_NOT_FOUND, "message": "Method not found"}}
        if found["method"] == "ping":
            answer = {"result": {}}
        await self._transport.notify({"jsonrpc": "2.0", "id": found["id"], **answer})

    async def _cancel(self, request_id: int, reason: str) -> None:
        if not self._is_open:
            return  # `initialize` cannot be cancelled
        params = {"requestId": request_id, "reason": reason}
        message = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
        with contextlib.suppress(McpError, TimeoutError):
            async with asyncio.timeout(CANCEL_S):
                await self._transport.notify(message)


def _reason(error: Any) -> str:
    reason = error.get("message") if isinstance(error, dict) else None
    return shortened(reason) if isinstance(reason, str) else "the request failed"
