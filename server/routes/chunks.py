"""A streamed answer's chunks as whole events; what never changes is encoded once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import orjson

from engine.border.types import FinishReason
from server.answering.choice import Delta
from server.answering.generation import Usage


class Chunks(ABC):
    """One answer's chunks, of the object shapes of a route."""

    def __init__(self, head: bytes, *, with_usage: bool) -> None:
        """Args:
        head: the beginning of each chunk's JSON object, open for more keys.
        with_usage: a usage chunk comes last, and the others say that theirs is null.
        """
        self._head = b"data: " + head
        self._tail = b',"usage":null}\n\n' if with_usage else b"}\n\n"

    def encode(self, deltas: Sequence[Delta]) -> bytes:
        """One `data: {…}` event for each delta."""
        return b"".join([self._encode(delta) for delta in deltas])

    def encode_usage(self, usage: Usage) -> bytes:
        """The last chunk, without choices."""
        return self._head + b',"choices":[],"usage":' + orjson.dumps(usage.to_dict()) + b"}\n\n"

    @abstractmethod
    def _encode(self, delta: Delta) -> bytes: ...


def encode_reason(reason: FinishReason | None) -> bytes:
    """A finish_reason as JSON."""
    return b"null" if reason is None else b'"%b"' % reason.encode()
