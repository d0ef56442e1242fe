"""The sources of tools that the flags `--mcp`, `--mcp-config` and `--tools` name."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from urllib.parse import quote

import orjson
from yarl import URL

from server.cli.client.address import check_address, root_of
from server.cli.client.errors import NoAnswer
from server.cli.client.server_client import ServerClient
from server.cli.tools.builtin import BuiltinTools
from server.cli.tools.http_transport import HttpTransport
from server.cli.tools.mcp_client import McpClient
from server.cli.tools.stdio_transport import StdioTransport
from server.cli.tools.tool import ToolSource


def open_sources(
    names: Sequence[str], config: str | None, url: str, api_key: str | None, *, has_builtin: bool
) -> list[ToolSource]:
    """The sources of tools; raises NoAnswer where one does not exist. Nothing is connected or started yet.

    Args:
        names: of MCP servers in `config`, or else of those of the server at `url`; or addresses of MCP servers.
        config: a file of MCP servers, all of which are meant where `names` has none of them.
        url: of the server that answers, with its `api_key`.
    """
    names = list(dict.fromkeys(names))
    addresses = [name for name in names if "://" in name]
    others = [name for name in names if "://" not in name]
    sources: list[ToolSource] = [BuiltinTools()] if has_builtin else []
    if config is not None:
        sources += _of_file(config, others)
    elif others:
        sources += _of_server(url, api_key, others)
    for address in addresses:
        check_address(address, None)
        name = URL(address).host or address
        sources.append(McpClient(name, HttpTransport(name, address, {})))
    return sources


def _of_file(path: str, names: Sequence[str]) -> list[ToolSource]:
    from server.http.mcp.config import McpConfigError, McpServer, read_with_commands

    try:
        entries = read_with_commands(path, os.environ, names)
    except McpConfigError as error:
        raise NoAnswer(str(error).replace("mcp_config", "--mcp-config", 1)) from error
    return [
        McpClient(
            entry.name,
            HttpTransport(entry.name, entry.url, entry.headers)
            if isinstance(entry, McpServer)
            else StdioTransport(entry.name, entry.arguments, entry.environment, entry.folder),
        )
        for entry in entries.values()
    ]


def _of_server(url: str, api_key: str | None, names: Sequence[str]) -> list[ToolSource]:
    client = ServerClient(url, api_key)
    known = [str(found["id"]) for found in orjson.loads(asyncio.run(client.get("/v1/mcp")))["data"]]
    for name in names:
        if name not in known:
            has = f"it has {', '.join(known)}" if known else "it has none; --mcp-config FILE names some here"
            raise NoAnswer(f"the server at {client.url} has no MCP server {name}; {has}")
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    return [
        McpClient(name, HttpTransport(name, f"{root_of(url)}/v1/mcp/{quote(name, safe='')}", headers)) for name in names
    ]
