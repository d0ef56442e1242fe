"""How a streamed answer is cut, told and kept, as fields of a request's body."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from pydantic import BaseModel, Field, model_validator

from server.protocol.errors import ApiError

MAX_INTERVAL = 1024  # tokens


class Streaming(NamedTuple):
    """What a request asks of its stream, whichever route it came by."""

    interval: int = 1  # tokens that a delta has at least, but for the first and the last
    is_resumable: bool = False  # its events are numbered and kept, and a client may come back for the rest
    tells_progress: bool = False  # before the first token, it tells how the request waits for it
    is_wanted: bool = False  # there is a stream at all; otherwise the answer comes as a whole


PLAIN = Streaming()


class StreamFields(BaseModel):
    """Parameters of streams that every generating route has. null means the default. Its heirs say how strict it is."""

    resumable: bool | None = None
    return_progress: bool | None = None
    stream_interval: Annotated[int, Field(ge=1, le=MAX_INTERVAL)] | None = None

    @model_validator(mode="after")
    def _some_need_stream(self) -> StreamFields:
        if getattr(self, "stream", None):
            return self
        if self.resumable:
            raise ApiError(
                "resumable is true and stream is not; only a stream can be resumed",
                param="resumable",
                code="invalid_value",
            )
        if self.return_progress:
            raise ApiError(
                "return_progress is true and stream is not; only a stream can tell of progress",
                param="return_progress",
                code="invalid_value",
            )
        return self

    @property
    def streaming(self) -> Streaming:
        """What the request asks of its stream."""
        is_wanted = bool(getattr(self, "stream", None))
        return Streaming(self.stream_interval or 1, self.resumable is True, self.return_progress is True, is_wanted)
