"""Reads prompts from a JSONL file."""

from pathlib import Path
from typing import Any

import orjson

from server.cli.bench.load.workload import Route
from server.cli.client.errors import NoAnswer

MAX_BYTES = 1 << 30  # of the file


def read_dataset(path: Path, route: Route) -> tuple[dict[str, Any], ...]:
    """The parts of request bodies in the lines of the file, for requests to `route`.

    A line has `prompt` (a text or token ids) or `messages`, and other parameters, or all of that in `body`.
    `output_tokens` is another name of `max_tokens`; a model is ignored. Raises NoAnswer for an invalid line, or where
    the file cannot be read.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise NoAnswer(f"--dataset {path} is larger than {MAX_BYTES:,} bytes")
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise NoAnswer(f"--dataset {path} cannot be read: {error.strerror}") from error
    parts = tuple(
        _part(line, route, f"--dataset {path}, line {at}") for at, line in enumerate(lines, 1) if line.strip()
    )
    if not parts:
        raise NoAnswer(f"--dataset {path} has no line with a prompt")
    return parts


def _part(line: bytes, route: Route, where: str) -> dict[str, Any]:
    try:
        part = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise NoAnswer(f"{where}: {error}") from error
    if isinstance(part, dict) and isinstance(part.get("body"), dict):
        part = part["body"]
    if not isinstance(part, dict):
        raise NoAnswer(f"{where} is not a JSON object")
    prompt, messages = part.get("prompt"), part.get("messages")
    if messages is None and not (isinstance(prompt, str | list) and prompt):
        raise NoAnswer(f"{where} has neither a prompt nor messages")
    if messages is not None and not (isinstance(messages, list) and messages):
        raise NoAnswer(f"{where}: messages must be a list that is not empty")
    if messages is not None and route == "completions":
        raise NoAnswer(f"{where} has messages, which only --route chat and --route websocket take")
    if messages is None and route == "chat":
        if not isinstance(prompt, str):
            raise NoAnswer(f"{where} has token ids, which a chat does not accept")
        part = {**part, "messages": [{"role": "user", "content": prompt}]}
        del part["prompt"]
    if "output_tokens" in part:
        part = {**part, "max_tokens": part["output_tokens"]}
        del part["output_tokens"]
    return {name: value for name, value in part.items() if name not in ("model", "stream", "stream_options")}
