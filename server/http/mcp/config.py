"""Reads the file of MCP servers, in the form that editors and agents use (`mcpServers`)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

from engine.interface.regular_file import open_regular
from server.startup.logs import log
from server.startup.settings import SettingsError

MAX_FILE_BYTES = 1 << 20
MAX_SERVERS = 64
STREAMABLE_HTTP = ("http", "streamable-http", "streamableHttp")  # the values of `type` that clients write

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)\}")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class McpConfigError(SettingsError):
    """The file cannot be read, or an entry is wrong; the message names the file and the entry, and never a value."""


@dataclass(frozen=True, slots=True)
class McpServer:
    """One MCP server, reached over streamable HTTP."""

    name: str
    url: str = field(repr=False)  # it may hold a key
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class McpCommand:
    """One MCP server that is a process, reached over its standard input and output."""

    name: str
    arguments: tuple[str, ...] = field(repr=False)  # the command is the first
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)  # beside what every process needs
    folder: str | None = None


def read_config(path: str, environment: Mapping[str, str]) -> dict[str, McpServer]:
    """The servers of a file by their names. `${NAME}` in an address or a header is a variable of the environment.

    Entries that start a command, and those that are `disabled`, are left out; a warning names the former.

    Raises:
        McpConfigError: the file is missing, is not such a file, or an entry cannot be used.
    """
    servers = {}
    for name, entry, where in _entries(path):
        if "command" in entry:
            log.warning("mcp_server_left_out", name=name, reason="it starts a command; pages reach servers with a url")
            continue
        servers[name] = _read_server(name, entry, where, environment)
    return servers


def read_with_commands(
    path: str, environment: Mapping[str, str], names: Collection[str]
) -> dict[str, McpServer | McpCommand]:
    """As `read_config`, with the entries that start a command; of `names` only, unless there are none.

    Raises:
        McpConfigError: also where the file has no entry of a name.
    """
    servers: dict[str, McpServer | McpCommand] = {}
    for name, entry, where in _entries(path):
        if not names or name in names:
            read = _read_command if "command" in entry else _read_server
            servers[name] = read(name, entry, where, environment)
    for name in names:
        if name not in servers:
            raise McpConfigError(f"mcp_config {path} has no server {name}, or it is disabled")
    return servers


def _entries(path: str) -> Iterator[tuple[str, dict[str, Any], str]]:
    """The name of each entry that is not disabled, the entry, and the beginning of errors about it."""
    try:
        with open_regular(Path(path).expanduser()) as file:
            content = file.read(MAX_FILE_BYTES + 1)
        body = orjson.loads(content)
    except OSError as error:
        raise McpConfigError(f"mcp_config {path}: {error.strerror or error}") from error
    except orjson.JSONDecodeError as error:
        raise McpConfigError(f"mcp_config {path} is not JSON: {error}") from error
    if len(content) > MAX_FILE_BYTES:
        raise McpConfigError(f"mcp_config {path} has more than {MAX_FILE_BYTES} bytes, the limit")
    entries = body.get("mcpServers", body.get("servers")) if isinstance(body, dict) else None
    if not isinstance(entries, dict):
        raise McpConfigError(f'mcp_config {path} must be {{"mcpServers": {{NAME: {{"url": …}}}}}}')
    if len(entries) > MAX_SERVERS:
        raise McpConfigError(f"mcp_config {path} names {len(entries)} servers; the limit is {MAX_SERVERS}")
    for name, entry in entries.items():
        where = f"mcp_config {path}: {name}"
        if not _NAME.fullmatch(name):
            raise McpConfigError(f"{where}: a name has 1 to 64 letters, digits, dots, dashes and underscores")
        if not isinstance(entry, dict):
            raise McpConfigError(f'{where} must be an object with a "url"')
        if entry.get("disabled") is not True and entry.get("enabled") is not False:
            yield name, entry, where


def _read_server(name: str, entry: dict[str, Any], where: str, environment: Mapping[str, str]) -> McpServer:
    kind, url, headers = entry.get("type", "http"), entry.get("url"), entry.get("headers", {})
    if kind not in STREAMABLE_HTTP:
        raise McpConfigError(f"{where}: its type must be one of {', '.join(STREAMABLE_HTTP)}")
    if not isinstance(url, str):
        raise McpConfigError(f'{where}: it must have a "url"')
    url = _expand(url, where, environment)
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable:
        raise McpConfigError(f"{where}: its url must begin with http:// or https:// and name a host")
    if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
        raise McpConfigError(f"{where}: its headers must be an object of texts")
    expanded = {header: _expand(value, where, environment) for header, value in headers.items()}
    for header, value in expanded.items():
        if not _HEADER_NAME.fullmatch(header) or not value.isprintable():
            raise McpConfigError(f"{where}: its header {header!r} cannot be sent")
    return McpServer(name, url, expanded)


def _read_command(name: str, entry: dict[str, Any], where: str, environment: Mapping[str, str]) -> McpCommand:
    command, arguments, variables = entry["command"], entry.get("args", []), entry.get("env", {})
    folder = entry.get("cwd")
    if entry.get("type", "stdio") != "stdio":
        raise McpConfigError(f"{where}: the type of a command must be stdio")
    if not isinstance(command, str) or not command:
        raise McpConfigError(f"{where}: its command must be a text")
    if not isinstance(arguments, list) or not all(isinstance(value, str) for value in arguments):
        raise McpConfigError(f"{where}: its args must be a list of texts")
    if not isinstance(variables, dict) or not all(isinstance(value, str) for value in variables.values()):
        raise McpConfigError(f"{where}: its env must be an object of texts")
    if folder is not None and not isinstance(folder, str):
        raise McpConfigError(f"{where}: its cwd must be a text")
    words = tuple(_expand(word, where, environment) for word in (command, *arguments))
    own = {variable: _expand(value, where, environment) for variable, value in variables.items()}
    folder = None if folder is None else _expand(folder, where, environment)
    if any("\0" in text for text in (*words, *own, *own.values(), folder or "")) or any("=" in key for key in own):
        raise McpConfigError(f"{where}: no process can be started with these args, env and cwd")
    return McpCommand(name, words, own, folder)


def _expand(text: str, where: str, environment: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        if found[1] not in environment:
            raise McpConfigError(f"{where}: the environment has no variable {found[1]}")
        return environment[found[1]]

    return _VARIABLE.sub(value, text)
