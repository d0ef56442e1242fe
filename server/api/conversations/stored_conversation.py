"""The stored form of a conversation: one line of JSON with its metadata, and a line for each of its items.

Items are added and removed as lines, and an item is parsed only where it is needed. A parser holds the
interpreter lock from beginning to end; for a whole conversation that is milliseconds, and every use would pay them.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import accumulate, takewhile
from typing import Any, NamedTuple, Self

import orjson

from server.api.responses.items import Item

MAX_ITEMS = 10_000  # of a conversation

_ID = re.compile(rb'\{"id":("(?:[^"\\]|\\.)*")')  # every line of an item begins with it


class StoredConversation(NamedTuple):
    """The metadata of a conversation, and its items from the oldest to the newest, one line each."""

    head: bytes
    lines: tuple[bytes, ...] = ()

    @classmethod
    def new(cls, head: Mapping[str, Any], items: Sequence[Item] = ()) -> Self:
        """A conversation that begins with `items`; `head` has its id, the time of its creation, and its metadata."""
        return cls(orjson.dumps(head), _encode(items))

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """The conversation that `to_bytes` has written, or a version of this server before there were lines."""
        head, *lines = content.split(b"\n")
        if not lines:
            whole = orjson.loads(head)
            if "items" in whole:
                return cls.new(whole, whole.pop("items"))
        return cls(head, tuple(lines))

    def to_bytes(self) -> bytes:
        return b"\n".join((self.head, *self.lines))

    @property
    def api_object(self) -> dict[str, Any]:
        """The conversation object of the API."""
        return {"object": "conversation", **orjson.loads(self.head)}

    @property
    def items(self) -> list[Item]:
        """All items, parsed. May take long, and lets other threads run in between."""
        return [orjson.loads(line) for line in self.lines]

    def with_metadata(self, metadata: Mapping[str, str]) -> Self:
        return self._replace(head=orjson.dumps({**orjson.loads(self.head), "metadata": metadata}))

    def with_items(self, items: Sequence[Item], max_bytes: int) -> Self:
        """The conversation with more items at its end; the oldest are dropped beyond `max_bytes`, but never the last.

        Every use of a conversation reads it whole, so it may have no more bytes than one request's body.
        """
        lines = (*self.lines, *_encode(items))[-MAX_ITEMS:]
        sizes = accumulate(len(line) for line in reversed(lines))
        num_kept = max(sum(1 for _ in takewhile(lambda size: size <= max_bytes, sizes)), 1)
        return self._replace(lines=lines[-num_kept:])

    def line_of(self, item_id: str) -> bytes | None:
        """The item with this id, as JSON; None where there is none."""
        start = _start_of(item_id)
        return None if start is None else next((line for line in self.lines if line.startswith(start)), None)

    def without(self, item_id: str) -> Self:
        start = _start_of(item_id)
        left = self.lines if start is None else (line for line in self.lines if not line.startswith(start))
        return self._replace(lines=tuple(left))


def id_of(line: bytes) -> str:
    """The id of an item from its line."""
    found = _ID.match(line)
    assert found is not None
    item_id: str = orjson.loads(found[1])
    return item_id


def _encode(items: Sequence[Item]) -> tuple[bytes, ...]:
    return tuple(orjson.dumps({"id": item["id"], **item}) for item in items)


def _start_of(item_id: str) -> bytes | None:
    """The beginning of such an item's line; None where the id is not Unicode, as no stored one can be."""
    try:
        return orjson.dumps({"id": item_id})[:-1] + b","
    except orjson.JSONEncodeError:
        return None
