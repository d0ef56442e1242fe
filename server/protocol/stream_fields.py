"""Fields of request bodies about streaming: intervals, resumable streams, progress events."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from pydantic import BaseModel, Field, model_validator

from server.protocol.errors import invalid_value

MAX_INTERVAL = 1024  # tokens


class Streaming(NamedTuple):
    """The streaming options of a request, whichever route it came by."""

    interval: int = 1  # tokens that a delta has at least, but for the first and the last
    is_resumable: bool = False  # its events are numbered and buffered, and a client may reconnect for the rest
    tells_progress: bool = False  # events before the first token say how the request waits
    is_wanted: bool = False  # there is a stream at all; otherwise the answer comes as a whole


PLAIN = Streaming()


class StreamFields(BaseModel):
    """Streaming parameters that every generating route has. null means the default."""

    resumable: bool | None = None
    return_progress: bool | None = None
    stream_interval: Annotated[int, Field(ge=1, le=MAX_INTERVAL)] | None = None

    @model_validator(mode="after")
    def _some_need_stream(self) -> StreamFields:
        if getattr(self, "stream", None):
            return self
        if self.resumable:
            raise invalid_value("resumable is true and stream is not; only a stream can be resumed", "resumable")
        if self.return_progress:
            raise invalid_value(
                "return_progress is true and stream is not; only a stream can tell of progress", "return_progress"
            )
        return self

    @property
    def streaming(self) -> Streaming:
        is_wanted = bool(getattr(self, "stream", None))
        return Streaming(self.stream_interval or 1, self.resumable is True, self.return_progress is True, is_wanted)
