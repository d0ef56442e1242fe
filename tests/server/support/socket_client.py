"""A client of the WebSocket /v1/stream, made of the `websockets` library."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from tests.patience import PATIENCE_S
from tests.server.conftest import RunningServer


def open_socket(server: RunningServer, **options: Any) -> connect:
    return connect(server.url.replace("http", "ws", 1) + "/v1/stream", proxy=None, **options)


async def send(socket: ClientConnection, **frame: Any) -> None:
    await socket.send(json.dumps(frame))


async def receive(socket: ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE_S):
        message: dict[str, Any] = json.loads(await socket.recv(decode=True))
    return message


async def read_to_end(socket: ClientConnection, client_id: str) -> list[dict[str, Any]]:
    """The messages up to the terminal one of `client_id`."""
    messages = [await receive(socket)]
    while messages[-1]["type"] not in ("done", "error") or messages[-1]["id"] != client_id:
        messages.append(await receive(socket))
    return messages
