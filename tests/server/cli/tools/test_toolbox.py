"""The toolbox of the chat, and the sources that the flags name."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from server.cli.client.errors import NoAnswer
from server.cli.client.server_client import Call
from server.cli.tools.builtin import BuiltinTools
from server.cli.tools.sources import open_sources
from server.cli.tools.tool import Result, Tool
from server.cli.tools.toolbox import Toolbox
from server.cli.tools.transport import McpError
from tests.server.cli.tools.scripted_mcp import HttpMcp
from tests.server.conftest import StartServer

SCRIPT = str(Path(__file__).with_name("scripted_mcp.py"))


class FakeSource:
    """A source with tools of these names, which give their own names and arguments."""

    def __init__(self, name: str, *names: str, failure: str | None = None) -> None:
        self.name = name
        self._names = names
        self._failure = failure

    async def list_tools(self) -> list[Tool]:
        if self._failure is not None:
            raise McpError(self._failure)
        return [Tool(name, "", {"type": "object"}) for name in self._names]

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> Result:
        if "raise" in arguments:
            raise McpError(f"{self.name} is gone")
        return Result(f"{self.name} {name} {json.dumps(arguments)}")

    async def close(self) -> None:
        pass


def call(name: str, arguments: str = "") -> Call:
    return Call("c", name, arguments)


def test_each_tool_has_a_name_of_its_own_that_a_request_may_have() -> None:
    long = "x" * 100
    box = Toolbox([FakeSource("a", "find", "my tool.v2", long), FakeSource("b c", "find", "find", long, long)])
    assert box.load() == []
    names = [tool["function"]["name"] for tool in box.definitions()]
    assert names[:5] == ["find", "my_tool_v2", long[:64], "b_c__find", "b_c__find_2"]
    assert len(set(names)) == len(names) == 7
    assert all(len(name) <= 64 for name in names)
    assert box.run(call("b_c__find", '{"q": 1}')) == Result('b c find {"q": 1}')
    assert box.run(call("my_tool_v2")) == Result("a my tool.v2 {}")
    box.close()


def test_a_source_that_fails_or_has_no_tools_keeps_the_others_in_use() -> None:
    box = Toolbox([FakeSource("a", failure="a cannot be reached"), FakeSource("b"), FakeSource("c", "find")])
    assert box.load() == ["a cannot be reached", "b has no tools"]
    assert [tool["function"]["name"] for tool in box.definitions()] == ["find"]
    box.close()


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (call("other"), "There is no tool other."),
        (call("find", '{"q": '), "are not JSON"),
        (call("find", "[]"), "must be an object"),
        (call("find", '{"q": ' + "[" * 200 + "]" * 200 + "}"), "at most 100 levels"),
        (call("find", '{"raise": 1}'), "a is gone"),
    ],
)
def test_a_call_that_cannot_run_is_a_text_for_the_model(made: Call, says: str) -> None:
    box = Toolbox([FakeSource("a", "find")])
    box.load()
    result = box.run(made)
    assert result.is_error
    assert says in result.text
    box.close()


def test_the_calculator_and_the_time_are_tools() -> None:
    box = Toolbox([BuiltinTools()])
    box.load()
    assert box.run(call("calculator", '{"expression": "6 * 7"}')) == Result("42")
    assert box.run(call("calculator", '{"expression": "6 *"}')).is_error
    assert box.run(call("calculator", '{"expression": 6}')).is_error
    assert box.run(call("time", '{"time_zone": "UTC"}')).text.endswith("UTC")
    assert not box.run(call("time")).is_error
    for zone in ("Nowhere/City", "../../etc/passwd", "/etc/passwd", "Europe"):
        assert box.run(call("time", json.dumps({"time_zone": zone}))) == Result(f"There is no time zone {zone}.", True)
    box.close()


def test_a_file_names_processes_and_addresses_and_each_name_chooses(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    docs = {"url": "http://127.0.0.1:1/mcp"}
    path.write_text(json.dumps({"mcpServers": {"files": {"command": sys.executable, "args": [SCRIPT]}, "docs": docs}}))

    def names(*chosen: str, **flags: Any) -> list[str]:
        sources = open_sources(chosen, str(path), "http://127.0.0.1:1", None, **{"has_builtin": False, **flags})
        return [source.name for source in sources]

    assert names() == ["files", "docs"]
    assert names("docs", "docs") == ["docs"]
    assert names("https://mcp.example.org/mcp?key=1", has_builtin=True) == ["eagre", "files", "docs", "mcp.example.org"]
    with pytest.raises(NoAnswer, match=r"--mcp-config .* has no server other"):
        names("other")
    with pytest.raises(NoAnswer, match="not the address"):
        names("ftp://example.org")
    box = Toolbox(open_sources(["files"], str(path), "http://127.0.0.1:1", None, has_builtin=False))
    assert box.load() == []
    assert box.run(call("add", '{"a": 2}')).text.startswith("5")
    box.close()


async def test_a_name_is_one_of_the_server_and_its_messages_go_through_it(
    start_server: StartServer, tmp_path: Path
) -> None:
    async with HttpMcp().run() as docs:
        path = tmp_path / "mcp.json"
        path.write_text(json.dumps({"mcpServers": {"docs": {"url": docs.url, "headers": {"X-Own": "k"}}}}))
        server = await start_server(mcp_config=str(path), api_keys=("client-key-0001",))

        def use() -> str:
            with pytest.raises(NoAnswer, match="has no MCP server other; it has docs"):
                open_sources(["other"], None, server.url, "client-key-0001", has_builtin=False)
            box = Toolbox(open_sources(["docs"], None, server.url + "/v1", "client-key-0001", has_builtin=False))
            try:
                assert box.load() == []
                docs.forgotten.add("s1")
                return box.run(call("add", '{"a": 2}')).text
            finally:
                box.close()

        assert (await asyncio.to_thread(use)).startswith("5")
        assert docs.num_sessions == 2
        assert docs.num_deleted == 1
        assert all(headers["X-Own"] == "k" and "Authorization" not in headers for headers in docs.headers)
