"""The events that output parsers emit."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar


class ContentDelta(NamedTuple):
    """Text outside of reasoning and calls."""

    text: str


class ToolCallStart(NamedTuple):
    """A call whose name is known; its arguments follow."""

    name: str
    call_id: str = ""  # that the model has given it


class ToolCallArguments(NamedTuple):
    """More of the JSON text of the last call's arguments."""

    text: str


class ReasoningDelta(NamedTuple):
    text: str


ParserEvent: TypeAlias = ContentDelta | ToolCallStart | ToolCallArguments | ReasoningDelta
ToolEvent: TypeAlias = ParserEvent  # some syntaxes of calls mark reasoning, too


Event = TypeVar("Event", bound=ParserEvent)


def merged(events: Sequence[Event]) -> list[Event]:
    """`events` with neighbouring pieces of the same text joined, and without empty ones."""
    joined: list[Any] = []
    pieces: list[str] = []  # of the last event, unless it is the start of a call
    for event in events:
        if isinstance(event, ToolCallStart):
            _join_last(joined, pieces)
            joined.append(event)
        elif event.text:
            if not pieces or type(event) is not type(joined[-1]):
                _join_last(joined, pieces)
                joined.append(event)
            pieces.append(event.text)
    _join_last(joined, pieces)
    return joined


def _join_last(joined: list[Any], pieces: list[str]) -> None:
    if len(pieces) > 1:
        joined[-1] = type(joined[-1])("".join(pieces))
    pieces.clear()
