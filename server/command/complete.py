"""`eagre complete`: writes the answer to one prompt to standard output, from a server or from this process."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, closing
from typing import Any

import orjson

from server.command.sse_parser import SseParser

DEFAULT_URL = "http://127.0.0.1:8000"
CONNECT_TIMEOUT_S = 5.0

_KEY = re.compile(r"[!-~]+")


class CompleteError(RuntimeError):
    """There is no answer; the message tells the user why."""


class NoServer(CompleteError):
    """No server listens at the address."""


def first_key(text: str | None) -> str | None:
    """The key to send, from what a user gives: one key, or the list that the server takes, whose entries have names.

    Raises:
        CompleteError: no header can carry it.
    """
    if text is None:
        return None
    entry = text.partition(",")[0].split()
    if not entry or not _KEY.fullmatch(entry[0]):
        raise CompleteError("the key (--api-key or EAGRE_API_KEY) must be visible ASCII characters")
    return entry[0]


async def write_remote(
    url: str, body: dict[str, Any], write: Callable[[str], object], api_key: str | None = None
) -> None:
    """Streams the answer to `body` from the server at `url`.

    A cancellation closes the connection, and so the server aborts the request.

    Raises:
        NoServer: no server listens there.
        CompleteError: the server refuses the request, fails, or closes the connection too early.
    """
    async with aclosing(_stream_remote(url, body, api_key)) as pieces:
        async for piece in pieces:
            write(piece)


def write_local(model: str | None, body: dict[str, Any], write: Callable[[str], object]) -> None:
    """Loads the model into this process, with progress bars on standard error, and streams from it.

    Raises:
        CompleteError: the model cannot be loaded, or the request is refused.
    """
    from pydantic import ValidationError

    from server.offline.offline_engine import OfflineEngine
    from server.routes.chat import ChatCall
    from server.routes.completions import CompletionCall
    from server.startup.loaded_model import load_model
    from server.startup.logs import set_up_logs
    from server.startup.progress import ProgressReporter
    from server.startup.settings import ServerSettings
    from server.wire.errors import ApiError, to_api_error

    set_up_logs("warning", "console")
    try:
        request = (ChatCall if "messages" in body else CompletionCall).parse(body).request
        # One answer needs one slot, and with one slot there are few shapes to compile.
        settings = ServerSettings.from_sources({"model": model, "max_num_seqs": 1}, os.environ)
        with ProgressReporter() as progress:
            loaded = load_model(settings, progress)
        with closing(OfflineEngine(loaded)) as engine, engine.stream(engine.prepare(request)) as stream:
            for delta in stream:
                write(delta.text)
    except (ApiError, ValidationError) as error:
        raise CompleteError(to_api_error(error).message) from error
    except (OSError, ValueError, RuntimeError) as error:
        raise CompleteError(str(error)) from error


async def _stream_remote(url: str, body: dict[str, Any], api_key: str | None) -> AsyncGenerator[str, None]:
    import aiohttp

    route = "chat/completions" if "messages" in body else "completions"
    address = f"{url.rstrip('/').removesuffix('/v1')}/v1/{route}"
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
            session.post(address, json={**body, "stream": True}) as response,
        ):
            if response.status != 200:
                raise CompleteError(_error_message(await response.read(), response.status))
            parser = SseParser()
            async for chunk in response.content.iter_any():
                for data in parser.decode(chunk):
                    if data == "[DONE]":
                        return
                    yield _text_of(data)
    except aiohttp.ClientConnectorError as error:
        raise NoServer(f"no server answers at {url}: {error}") from error
    except aiohttp.InvalidURL as error:
        raise CompleteError(f"--url {url} is no address of a server") from error
    except (aiohttp.ClientError, TimeoutError) as error:
        raise CompleteError(f"the connection to {url} broke: {str(error) or type(error).__name__}") from error
    raise CompleteError(f"the server at {url} ended the stream before the answer's end")


def _text_of(data: str) -> str:
    chunk = orjson.loads(data)
    if "error" in chunk:
        raise CompleteError(chunk["error"]["message"])
    if not chunk["choices"]:
        return ""
    choice = chunk["choices"][0]
    text = choice["text"] if "text" in choice else choice["delta"].get("content")
    return str(text or "")


def _error_message(body: bytes, status: int) -> str:
    try:
        return str(orjson.loads(body)["error"]["message"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return f"the server answered with status {status}"
