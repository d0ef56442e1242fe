"""`eagre ps` and `eagre show`: the models of running servers, and all that is known of one model."""

from __future__ import annotations

import os
from typing import Any

import orjson

from server.cli.client.address import shown
from server.cli.client.errors import NoAnswer, NoServer
from server.cli.manage.known_servers import served_models
from server.startup.plain_text import one_line

HEADER = ("NAME", "STATE", "CONTEXT", "QUANTIZATION", "SERVER", "PROCESS")


def list_running(url: str | None, api_key: str | None, *, as_json: bool) -> str:
    """A table of the models of each server, or one JSON object; raises NoAnswer."""
    found = [
        {**model, "server": shown(where), "pid": None if record is None else record.pid}
        for where, record, models in served_models(url, api_key)
        for model in models
    ]
    if as_json:
        return orjson.dumps({"models": found}, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()
    fields = ("id", "state", "max_model_len", "quantization", "server", "pid")
    rows = [HEADER, *(tuple(one_line(str(_or_dash(model.get(field)))) for field in fields) for model in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    return "".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() + "\n" for row in rows
    )


def describe(model: str, url: str | None, api_key: str | None, *, as_json: bool) -> str:
    """What a server says of a model, and what its files say where they are here; raises NoAnswer."""
    known: dict[str, Any] = {}
    try:
        for where, _, models in served_models(url, api_key):
            for served in models:
                if served["id"] == model and not known:
                    known = {"name": model, "server": shown(where), **served}
    except NoServer:
        if url is not None:
            raise
    if url is None:
        known = {**_of_files(model, is_needed=not known), **known}
    if not known:
        raise NoAnswer(f"the server at {shown(str(url))} has no model {model}; `eagre ps` lists what it has")
    for name in ("id", "object", "created", "owned_by"):
        known.pop(name, None)
    if as_json:
        return orjson.dumps(known, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()
    lines = {name.replace("_", " "): value for name, value in known.items() if value is not None}
    width = max(map(len, lines))
    return "".join(f"{name:<{width}}  {one_line(_text(value))}\n" for name, value in lines.items())


def _of_files(model: str, *, is_needed: bool) -> dict[str, Any]:
    """What `eagre models` says of a model; raises NoAnswer where there is none and it is needed."""
    from server.cli.manage.models import as_json, measure_one
    from server.model_sources.cache_folder import ModelStoreError
    from server.startup.settings import ServerSettings, SettingsError

    try:
        measured, memory = measure_one(model, ServerSettings.from_sources({}, os.environ).engine)
    except (ModelStoreError, SettingsError) as error:
        if is_needed:
            raise NoAnswer(str(error)) from error
        return {}
    described: dict[str, Any] = orjson.loads(as_json([measured], memory))["models"][0]
    return described


def _or_dash(value: object) -> object:
    return "-" if value is None else value


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {part}" for name, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
