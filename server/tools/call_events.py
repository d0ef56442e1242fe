"""What a reader of tool calls finds in the text of an answer, piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias


class Content(NamedTuple):
    """Text that belongs to no call."""

    text: str


class CallStart(NamedTuple):
    """A call whose name is known; its arguments follow."""

    name: str


class CallArguments(NamedTuple):
    """More of the JSON text of the last call's arguments."""

    text: str


CallEvent: TypeAlias = Content | CallStart | CallArguments


class CallReader(Protocol):
    """Reads the text of one answer as it comes, in pieces of any size; where it is cut makes no difference."""

    def feed(self, text: str) -> Sequence[CallEvent]:
        """What has become certain with `text`."""
        ...

    def flush(self) -> Sequence[CallEvent]:
        """What was held back, once no more text can come."""
        ...


def merged(events: Sequence[CallEvent]) -> list[CallEvent]:
    """`events` with neighbouring pieces of the same text joined, and without empty ones."""
    joined: list[CallEvent] = []
    for event in events:
        last = joined[-1] if joined else None
        if isinstance(event, Content | CallArguments) and not event.text:
            continue
        if isinstance(event, Content) and isinstance(last, Content):
            joined[-1] = Content(last.text + event.text)
        elif isinstance(event, CallArguments) and isinstance(last, CallArguments):
            joined[-1] = CallArguments(last.text + event.text)
        else:
            joined.append(event)
    return joined
