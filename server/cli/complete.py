"""`eagre complete`: streams the answer to one prompt from a server, or from a model in this process."""

import asyncio
import sys
from collections.abc import Callable
from contextlib import aclosing, closing
from typing import Any

from server.cli.client import address
from server.cli.client.errors import NoAnswer, NoModel, NoServer
from server.cli.client.server_client import ServerClient


def write_answer(
    url: str | None, model: str | None, api_key: str | None, body: dict[str, Any], write: Callable[[str], object],
    *, is_local: bool,
) -> None:  # fmt: skip
    """Streams the answer of the server at `url`, or without one of a local server or model; raises NoAnswer."""
    if not is_local:
        try:
            named = body if model is None else {"model": model, **body}
            asyncio.run(write_remote(url or address.DEFAULT_URL, named, write, api_key))
            return
        except NoModel as error:
            if url is not None:
                raise
            raise NoAnswer(f"{error}; --local loads it into this process") from error
        except NoServer:
            if url is not None:
                raise
            print(f"no server at {address.DEFAULT_URL}; loading the model here", file=sys.stderr)
    from server.cli.client.local_model import LocalModel

    LocalModel.check(body)
    with closing(LocalModel(model)) as local:
        for text in local.answer(body):
            write(text)


async def write_remote(
    url: str, body: dict[str, Any], write: Callable[[str], object], api_key: str | None = None
) -> None:
    """Streams the answer to `body` without its reasoning; raises NoServer or NoAnswer. Cancelling it disconnects."""
    async with aclosing(ServerClient(url, api_key).answer(body)) as pieces:
        async for piece in pieces:
            if not piece.is_reasoning:
                write(piece.text)
