"""The tools of a chat: which there are, what the model calls them, and their calls."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

from server.cli.client.server_client import Call
from server.cli.tools.tool import Result, Tool, ToolSource
from server.cli.tools.transport import MAX_DEPTH, McpError
from server.protocol.json_limits import is_deeper

MAX_NAME = 64  # characters of a function's name

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")


class Owner(NamedTuple):
    """What runs a call."""

    source: ToolSource
    tool: Tool


class Toolbox:
    """Runs calls in an event loop of its own, because connections and processes live from one call to the next."""

    def __init__(self, sources: Sequence[ToolSource]) -> None:
        self._sources = sources
        self._tools: dict[str, Owner] = {}  # by the name that the model calls
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)

    def load(self) -> list[str]:
        """Lists the tools of all sources; returns a sentence for each source that has none or fails."""
        return self._runner.run(self._load())

    def definitions(self) -> list[dict[str, Any]]:
        """The tools as a request has them."""
        return [
            {
                "type": "function",
                "function": {"name": name, "description": owner.tool.description, "parameters": owner.tool.schema},
            }
            for name, owner in self._tools.items()
        ]

    def owner(self, name: str) -> Owner | None:
        """What runs calls of a name; None where there is no such tool."""
        return self._tools.get(name)

    def run(self, call: Call) -> Result:
        """Runs a call; a failure is a text for the model, which may try again. KeyboardInterrupt stops it."""
        return self._runner.run(self._run(call))

    def close(self) -> None:
        """Ends sessions and processes."""
        try:
            self._runner.run(self._close())
        finally:
            self._runner.close()

    async def _load(self) -> list[str]:
        lists = await asyncio.gather(*(source.list_tools() for source in self._sources), return_exceptions=True)
        self._tools, failures = {}, []
        for source, tools in zip(self._sources, lists, strict=True):
            if isinstance(tools, McpError):
                failures.append(str(tools))
            elif isinstance(tools, BaseException):
                raise tools
            elif not tools:
                failures.append(f"{source.name} has no tools")
            else:
                for tool in tools:
                    self._tools[self._name_for(source, tool)] = Owner(source, tool)
        return failures

    async def _run(self, call: Call) -> Result:
        owner = self._tools.get(call.name)
        if owner is None:
            return Result(f"There is no tool {call.name}.", is_error=True)
        try:
            arguments = orjson.loads(call.arguments) if call.arguments.strip() else {}
        except orjson.JSONDecodeError as error:
            return Result(f"The arguments are not JSON: {error}.", is_error=True)
        if not isinstance(arguments, dict) or is_deeper(arguments, MAX_DEPTH):
            return Result(f"The arguments must be an object of at most {MAX_DEPTH} levels.", is_error=True)
        try:
            return await owner.source.call_tool(owner.tool.name, arguments)
        except McpError as error:
            return Result(str(error), is_error=True)

    async def _close(self) -> None:
        await asyncio.gather(*(source.close() for source in self._sources), return_exceptions=True)

    def _name_for(self, source: ToolSource, tool: Tool) -> str:
        """The tool's own name where no other tool has it, else its source's name before it, or a number after it."""
        own = _NOT_IN_NAMES.sub("_", tool.name)[:MAX_NAME]
        longer = f"{_NOT_IN_NAMES.sub('_', source.name)}__{own}"[:MAX_NAME]
        name, number = longer if own in self._tools else own, 2
        while name in self._tools:
            name, number = f"{longer[: MAX_NAME - 4]}_{number}", number + 1
        return name
