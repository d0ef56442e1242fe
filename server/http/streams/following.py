"""Sends the events of a logged stream to a client with their ids, so that it can resume."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from aiohttp import web

from server.http.entry.served import SERVED
from server.http.transport.event_stream import EventStreamResponse
from server.streams.stream import LoggedStream


@runtime_checkable
class ResumableOverHttp(Protocol):
    """The producer of a logged stream that clients read as server-sent events, and resume by its id."""

    async def __call__(self, stream: LoggedStream) -> None:
        """As `Producer`."""

    def check_transport(self) -> None:
        """Raises ApiError: 409, the stream was begun on a WebSocket."""

    def respond(self, request: web.Request, stream: LoggedStream) -> EventStreamResponse:
        """The response for one reader."""

    async def wait_begun(self, response: EventStreamResponse, stream: LoggedStream) -> None:
        """Waits until the request is accepted, with the response open where that may take long; raises ApiError."""


async def follow(
    request: web.Request, producer: ResumableOverHttp, stream: LoggedStream, after: str | None,
    *, on_begun: Callable[[], object] | None = None, is_first: bool = False,
) -> web.StreamResponse:  # fmt: skip
    """Streams the events after a position to the end of the stream; each event's id is its position.

    Args:
        after: the position; None: the beginning.
        on_begun: called when the request is accepted.
        is_first: the client does not know the stream's id yet; if the response never opens, the stream is forgotten.

    Raises ApiError: the request is refused, or too many read the stream.
    """
    response = producer.respond(request, stream)
    stream_id, with_id = stream.id.encode(), response.framing.with_id

    def frame(position: bytes, event: bytes) -> bytes:
        return with_id(b"%b:%b" % (stream_id, position), event)

    try:
        with stream.reading() as log:
            async with response:
                await producer.wait_begun(response, stream)
                if on_begun is not None:
                    on_begun()
                await response.open()
                async for entries in log.read(log.parse(after), response.follower(frame)):
                    await response.write(
                        [event if position is None else frame(position, event) for position, event, _ in entries]
                    )
                await response.end()
    finally:
        if is_first and not response.response.prepared:
            request.app[SERVED].streams.forget(stream)
    return response.response
