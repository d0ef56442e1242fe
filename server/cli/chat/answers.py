"""Sources of the chat's answers: a server, or a model in this process."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import aclosing, closing
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from server.cli.client import address
from server.cli.client.errors import NoAnswer, NoModel, NoServer
from server.cli.client.server_client import Piece, ServerClient

if TYPE_CHECKING:  # it brings all of the engine, which a server has for itself
    from server.cli.client.local_model import LocalModel


_NO_TOOLS = "calls no tools; start `eagre serve`, or use `eagre run MODEL`"


class Answers(Protocol):
    """A source of answers to the bodies of `POST /v1/chat/completions`."""

    name: str  # of the model

    def answer(self, body: dict[str, Any], write: Callable[[Piece], object]) -> None:
        """Writes the answer piece by piece; raises NoAnswer. KeyboardInterrupt aborts the request."""

    def sees(self, model: str | None) -> bool:
        """Whether a model reads pictures; None: the one that answers. True where that is not known."""

    def close(self) -> None: ...


class ServerAnswers:
    """Answers of a server; raises NoAnswer where there is none, it is not ready, or it refuses the key."""

    def __init__(self, client: ServerClient, model: str | None) -> None:
        self._listed = {
            str(found["id"]): found for found in orjson.loads(asyncio.run(client.get("/v1/models")))["data"]
        }
        names = list(self._listed)
        if model is not None and model not in names:
            raise NoModel(f"the server at {client.url} has no model {model}; it has {', '.join(names)}")
        self.name = model or names[0]
        self._client = client

    def answer(self, body: dict[str, Any], write: Callable[[Piece], object]) -> None:
        asyncio.run(self._answer(body, write))

    async def _answer(self, body: dict[str, Any], write: Callable[[Piece], object]) -> None:
        async with aclosing(self._client.answer(body)) as pieces:
            async for piece in pieces:
                write(piece)

    def sees(self, model: str | None) -> bool:
        return "image" in self._listed.get(model or self.name, {}).get("modalities", ["image"])

    def close(self) -> None:
        pass  # each answer has a connection of its own


class LocalAnswers:
    def __init__(self, model: LocalModel) -> None:
        self._model = model
        self.name = model.name

    def answer(self, body: dict[str, Any], write: Callable[[Piece], object]) -> None:
        own = {name: value for name, value in body.items() if name != "model"}  # there is only one
        with closing(self._model.answer(own)) as texts:
            for text in texts:
                write(Piece(text))

    def sees(self, model: str | None) -> bool:
        return self._model.sees

    def close(self) -> None:
        self._model.close()


def open_answers(
    url: str | None,
    model: str | None,
    api_key: str | None,
    body: dict[str, Any],
    *,
    is_local: bool,
    has_tools: bool = False,
) -> Answers:
    """Answers of a `model` of the server at `url` or the default address, or else of this process; raises NoAnswer.

    `body` is like those that will follow; what it has wrong is found before a model is loaded. A model of this process
    calls no tools.
    """
    if is_local and has_tools:
        raise NoAnswer(f"--local {_NO_TOOLS}")
    if not is_local:
        try:
            return ServerAnswers(ServerClient(url or address.DEFAULT_URL, api_key), model)
        except NoModel as error:
            if url is not None:
                raise
            raise NoAnswer(f"{error}; --local loads it into this process") from error
        except NoServer:
            if url is not None:
                raise
            if has_tools:
                raise NoAnswer(f"no server at {address.DEFAULT_URL}; a model in this process {_NO_TOOLS}") from None
            print(f"no server at {address.DEFAULT_URL}; loading the model here", file=sys.stderr)
    from server.cli.client.local_model import LocalModel

    LocalModel.check(body)
    return LocalAnswers(LocalModel(model))
