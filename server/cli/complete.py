"""`eagre complete`: streams the answer to one prompt from a server, or from a model in this process."""

import argparse
import asyncio
import json
import os
import stat
import sys
from collections.abc import Callable
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any, TextIO

from server.cli.client import address
from server.cli.client.errors import NoAnswer, NoModel, NoServer
from server.cli.client.server_client import ServerClient


def body_of(options: argparse.Namespace) -> dict[str, Any]:
    """The body of the request, for chat if a system message or a form of the answer is given; raises NoAnswer."""
    prompt = _text_of(sys.stdin) if options.prompt == "-" else _with_attachment(options.prompt)
    form: dict[str, Any] | None = {"type": "json_object"} if options.json else None
    if options.schema is not None:
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": _read_schema(options.schema)}}
    if not options.chat and options.system is None and form is None:
        return {"prompt": prompt}
    system = [] if options.system is None else [{"role": "system", "content": options.system}]
    body: dict[str, Any] = {"messages": [*system, {"role": "user", "content": prompt}]}
    return body if form is None else {**body, "response_format": form}


def _with_attachment(prompt: str) -> str:
    """The prompt, and behind it what a pipe or a file gives on standard input."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # there is no standard input
        return prompt
    if not (stat.S_ISFIFO(mode) or stat.S_ISREG(mode)):
        return prompt
    text = _text_of(sys.stdin)
    return f"{prompt}\n\n{text}" if text.strip() else prompt


def _text_of(file: TextIO) -> str:
    try:
        return file.read()
    except UnicodeDecodeError as error:
        raise NoAnswer(f"standard input is not UTF-8: {error.reason} at byte {error.start}") from error


def _read_schema(text: str) -> dict[str, Any]:
    """A JSON schema, given itself or as the path of a file; raises NoAnswer."""
    content, where = text, "--schema"
    if not text.lstrip().startswith("{"):
        try:
            content, where = Path(text).read_text(encoding="utf-8"), text
        except (OSError, ValueError) as error:
            raise NoAnswer(f"--schema is neither an object of JSON nor a file that can be read: {error}") from error
    try:
        schema = json.loads(content)
    except ValueError as error:
        raise NoAnswer(f"{where} is no JSON: {error}") from error
    if not isinstance(schema, dict):
        raise NoAnswer(f'{where} must be an object, as in {{"type": "object"}}')
    return schema


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
