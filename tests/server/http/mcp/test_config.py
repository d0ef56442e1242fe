"""The file of MCP servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from server.http.mcp.config import (
    MAX_FILE_BYTES,
    MAX_SERVERS,
    McpCommand,
    McpConfigError,
    McpServer,
    read_config,
    read_with_commands,
)

URL = "https://example.org/mcp"


def write(folder: Path, servers: Any, key: str = "mcpServers") -> str:
    path = folder / "mcp.json"
    path.write_text(json.dumps({key: servers}))
    return str(path)


@pytest.mark.parametrize("key", ["mcpServers", "servers"])
@pytest.mark.parametrize("kind", [{}, {"type": "http"}, {"type": "streamable-http"}, {"type": "streamableHttp"}])
def test_a_server_is_read_in_the_forms_of_editors(tmp_path: Path, key: str, kind: dict[str, str]) -> None:
    entry = {**kind, "url": "${BASE}/mcp", "headers": {"Authorization": "Bearer ${env:TOKEN}"}}
    path = write(tmp_path, {"docs": entry, "off": {"url": "nothing", "disabled": True}}, key)
    servers = read_config(path, {"BASE": "https://example.org", "TOKEN": "secret"})
    assert list(servers) == ["docs"]
    assert (servers["docs"].url, dict(servers["docs"].headers)) == (URL, {"Authorization": "Bearer secret"})
    assert "secret" not in repr(servers["docs"])


def test_an_entry_that_starts_a_command_is_left_out_with_a_warning(tmp_path: Path) -> None:
    path = write(tmp_path, {"files": {"command": "npx", "args": ["-y", "x"]}, "docs": {"url": URL}})
    with capture_logs() as logs:
        assert list(read_config(path, {})) == ["docs"]
    assert [(entry["event"], entry["name"]) for entry in logs] == [("mcp_server_left_out", "files")]


@pytest.mark.parametrize(
    ("servers", "says"),
    [
        ([], "mcpServers"),
        ({"a b": {"url": URL}}, "a b"),
        ({"docs": URL}, "an object"),
        ({"docs": {}}, "url"),
        ({"docs": {"url": "ftp://example.org"}}, "http://"),
        ({"docs": {"url": "http://"}}, "host"),
        ({"docs": {"url": "http://[::1"}}, "host"),
        ({"docs": {"url": URL, "type": "sse"}}, "streamable-http"),
        ({"docs": {"url": URL, "headers": {"X": 5}}}, "headers"),
        ({"docs": {"url": URL, "headers": {"X": "a\r\nY: b"}}}, "'X'"),
        ({"docs": {"url": URL, "headers": {"X Y": "a"}}}, "'X Y'"),
        ({"docs": {"url": URL, "headers": {"X": "${MISSING}"}}}, "MISSING"),
        ({f"s{number}": {"url": URL} for number in range(MAX_SERVERS + 1)}, str(MAX_SERVERS)),
    ],
)
def test_what_is_wrong_is_named_with_the_file_and_the_entry(tmp_path: Path, servers: Any, says: str) -> None:
    path = write(tmp_path, servers)
    with pytest.raises(McpConfigError) as error:
        read_config(path, {})
    assert path in str(error.value)
    assert says in str(error.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    broken, large = tmp_path / "broken.json", tmp_path / "large.json"
    broken.write_text("{")
    large.write_text(" " * MAX_FILE_BYTES + "{}")
    for path in (broken, large, tmp_path, tmp_path / "missing.json"):
        with pytest.raises(McpConfigError, match="mcp_config"):
            read_config(str(path), {})


def test_a_chat_reads_commands_too_and_only_what_it_uses(tmp_path: Path) -> None:
    command = {"command": "npx", "args": ["-y", "${WHAT}"], "env": {"KEY": "${env:TOKEN}"}, "cwd": "/srv"}
    path = write(
        tmp_path,
        {"files": command, "docs": {"url": URL}, "other": {"command": "${MISSING}"}, "off": {"disabled": True}},
    )
    servers = read_with_commands(path, {"WHAT": "x", "TOKEN": "secret"}, ["files", "docs"])
    assert servers == {
        "files": McpCommand("files", ("npx", "-y", "x"), {"KEY": "secret"}, "/srv"),
        "docs": McpServer("docs", URL),
    }
    assert "secret" not in repr(servers["files"])
    for names, says in (([], "MISSING"), (["off"], "no server off"), (["none"], "no server none")):
        with pytest.raises(McpConfigError, match=says):
            read_with_commands(path, {"WHAT": "x", "TOKEN": "secret"}, names)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"command": 5}, "command"),
        ({"command": ""}, "command"),
        ({"command": "x", "args": "y"}, "args"),
        ({"command": "x", "args": [5]}, "args"),
        ({"command": "x", "env": {"A": 5}}, "env"),
        ({"command": "x", "cwd": 5}, "cwd"),
        ({"command": "x", "type": "http"}, "stdio"),
        ({"command": "x\0"}, "no process"),
        ({"command": "x", "env": {"A=B": "c"}}, "no process"),
    ],
)
def test_what_is_wrong_with_a_command_is_named(tmp_path: Path, entry: dict[str, Any], says: str) -> None:
    with pytest.raises(McpConfigError, match=f"files.*{says}"):
        read_with_commands(write(tmp_path, {"files": entry}), {}, [])
