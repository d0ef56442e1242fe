"""How a streamed answer is cut, told and kept, as fields of a request's body."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from pydantic import Field

from server.wire.strict_model import StrictModel

MAX_INTERVAL = 1024  # tokens


class Streaming(NamedTuple):
    """What a request asks of its stream, whichever route it came by."""

    interval: int = 1  # tokens that a delta has at least, but for the first and the last
    is_resumable: bool = False  # its events are numbered and kept, and a client may come back for the rest


PLAIN = Streaming()


class StreamFields(StrictModel):
    """Parameters of streams that every generating route has. null means the default."""

    resumable: bool | None = None
    stream_interval: Annotated[int, Field(ge=1, le=MAX_INTERVAL)] | None = None

    @property
    def streaming(self) -> Streaming:
        """What the request asks of its stream."""
        return Streaming(self.stream_interval or 1, self.resumable is True)
