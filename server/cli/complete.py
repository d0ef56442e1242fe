"""`eagre complete`: writes the answer to one prompt to standard output, from a server or from this process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing, closing
from typing import Any


async def write_remote(
    url: str, body: dict[str, Any], write: Callable[[str], object], api_key: str | None = None
) -> None:
    """Streams the answer to `body` from the server at `url`, without its reasoning.

    A cancellation closes the connection, and so the server aborts the request.

    Raises:
        NoServer: no server listens there.
        NoAnswer: the server refuses the request, fails, or closes the connection too early.
    """
    from server.cli.client.server_client import ServerClient

    async with aclosing(ServerClient(url, api_key).answer(body)) as pieces:
        async for piece in pieces:
            if not piece.is_reasoning:
                write(piece.text)


def write_local(model: str | None, body: dict[str, Any], write: Callable[[str], object]) -> None:
    """Loads the model into this process, with progress bars on standard error, and streams from it.

    Raises:
        NoAnswer: the model cannot be loaded, or the request is refused.
    """
    from server.cli.client.local_model import LocalModel

    LocalModel.check(body)
    with closing(LocalModel(model)) as local:
        for text in local.answer(body):
            write(text)
