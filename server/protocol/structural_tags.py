"""SGLang's and vLLM's `structural_tag`: free text, in which certain tags have JSON of a schema behind them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import orjson
from pydantic import Field

from server.protocol.base_models import StrictModel, bounded

MAX_STRUCTURES = 128
MAX_TRIGGERS = 32
MAX_TAG_CHARS = 512

TagText = Annotated[str, Field(min_length=1, max_length=MAX_TAG_CHARS)]
Triggers = Annotated[list[TagText], Field(min_length=1, fail_fast=True), bounded("triggers", MAX_TRIGGERS)]


class TagStructure(StrictModel):
    """JSON between two tags."""

    begin: TagText
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None  # any JSON by default
    end: Annotated[str, Field(max_length=MAX_TAG_CHARS)]


Structures = Annotated[list[TagStructure], Field(min_length=1, fail_fast=True), bounded("structures", MAX_STRUCTURES)]


def check_triggers(structures: Sequence[TagStructure], triggers: Sequence[str]) -> None:
    """Raises ValueError where a tag begins with no trigger, or with two."""
    for structure in structures:
        found = [trigger for trigger in dict.fromkeys(triggers) if structure.begin.startswith(trigger)]
        if len(found) != 1:
            raise ValueError(
                f"response_format.structures has the begin {structure.begin!r}, which begins with "
                f"{len(found) or 'none'} of the triggers; it must begin with one of them"
            )


def tags_lark(structures: Sequence[TagStructure], triggers: Sequence[str]) -> str:
    """The grammar, as texts in llguidance's variant of Lark and JSON schemas by turns, as JSON.

    Raises ValueError if a schema cannot be written as JSON.
    """
    used = [trigger for trigger in dict.fromkeys(triggers) if any(tag.begin.startswith(trigger) for tag in structures)]
    parts = [part for at, trigger in enumerate(used) for part in _behind(at, trigger, structures)]
    pieces = " | ".join(f"piece{at}" for at in range(len(used)))
    start = f"start: ({pieces})* REST\nREST: /(?s:.*)/\n"
    try:
        return orjson.dumps([start, *parts]).decode()
    except orjson.JSONEncodeError as error:
        raise ValueError(f"a schema of structures cannot be written as JSON: {error}") from error


def _behind(at: int, trigger: str, structures: Sequence[TagStructure]) -> Iterator[str | dict[str, Any]]:
    """Text up to a trigger, and what may follow it."""
    tags = [structure for structure in structures if structure.begin.startswith(trigger)]
    names = [f"tag{at}_{number}" for number in range(len(tags))]
    yield f"text{at}[suffix={_quoted(trigger)}]: /(?s:.*)/\npiece{at}: text{at} ({' | '.join(names)})\n"
    for name, structure in zip(names, tags, strict=True):
        yield f"{name}: {_quoted(structure.begin.removeprefix(trigger))} %json "
        yield structure.schema_ or {}
        yield f" {_quoted(structure.end)}\n"


def _quoted(text: str) -> str:
    return orjson.dumps(text).decode().replace("\x7f", "\\u007f") if text else ""
