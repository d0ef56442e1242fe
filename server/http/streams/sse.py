"""An HTTP response to which a generation is written, chunk by chunk."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from aiohttp import web

from engine.border.types import PromptProgress
from server.answering.generation import Generation, TellProgress
from server.holding.lanes import Lanes, Place, PlacedEvent
from server.http.entry.access_log import REQUEST_ID
from server.http.streams.held_stream import STREAM_HEADER
from server.routes.encoding import encode
from server.routes.route import BodyRoute, Call, StreamWriter
from server.serving.served_model import ServedModel
from server.serving.served_models import ServedModels
from server.startup.logs import log
from server.transport.write_watch import WriteWatch
from server.wire.errors import ApiError, to_api_error


class EventStream:
    """The streamed answer to one request; used as `async with`.

    Until it is open an error may still be answered with a status. Afterwards the client gets pings whenever nothing
    else is written, and errors as one event.
    """

    def __init__(
        self, request: web.Request, route: BodyRoute, served: ServedModels, stream_id: str | None = None
    ) -> None:
        """Args:
        stream_id: by which the client can resume it, or that it cannot.
        """
        self._request = request
        self._route = route
        self._served = served
        self._watch: WriteWatch | None = None
        self._writer: StreamWriter | None = None  # of what has begun to be streamed
        headers = {} if stream_id is None else {STREAM_HEADER: stream_id}
        self.response = web.StreamResponse(headers={**route.framing.headers, **headers})

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer = None
        watch, self._watch = self._watch, None  # they know each other, and would be kept until a garbage collection
        if watch is not None:
            await watch.__aexit__(kind, error, trace)

    @property
    def is_open(self) -> bool:
        return self._watch is not None

    async def open(self, first: bytes = b"") -> None:
        """Sends the headers and a ping, so that a proxy sees a living stream before there is a token; then `first`."""
        framing, settings = self._route.framing, self._served.settings
        if self._watch is not None:
            if first:
                await self._watch.write(first)
            return
        await self.response.prepare(self._request)
        watch = WriteWatch(
            self.response.write,
            self._cut,
            ping=framing.ping,
            ping_interval=settings.ping_interval,
            write_timeout=settings.write_timeout,
        )
        self._watch = await watch.__aenter__()
        await watch.write(framing.opening + first)

    async def write(self, generation: Generation, writer: StreamWriter) -> None:
        """Streams `generation` to its end; the stream is open.

        The caller owns the generation and aborts it when this is cancelled, which happens when
        the client leaves or its socket stalls beyond the write timeout.
        """
        assert self._watch is not None
        self._writer = writer
        async for deltas in generation:
            await self._watch.write(b"".join(await encode(writer, deltas, self._served.workers)))
        await self._end(writer.end())

    def tell_progress(self, call: Call[Any], request_id: str, model: ServedModel) -> TellProgress:
        """What writes how the answer to `call` waits. It may be used before the stream is open, which it then opens."""

        async def tell(progress: PromptProgress, index: int) -> None:
            told = call.encode_progress(progress, index, self._route.framing, request_id, model.model_name)
            await self.open(told)

        return tell

    async def follow(self, stream_id: str, lanes: Lanes, had: Place) -> None:
        """Streams what follows `had` of a resumable stream; each event has its place. The stream is open.

        Raises:
            ApiError: as `Lanes.read`.
        """
        assert self._watch is not None
        head = b"id: " + stream_id.encode() + b":"
        async for events in lanes.read(had):
            await self._watch.write(b"".join([_with_place(head, event) for event in events]))
        await self._end(b"")

    async def fail(self, error: Exception) -> None:
        """Tells the client of an error. The status is sent; what is left is one event and the end."""
        await self._end(self._encode_failure(_log_failure(error)))

    def _encode_failure(self, error: ApiError) -> bytes:
        told = b"" if self._writer is None else self._writer.encode_error(error)
        return told or self._route.encode_error_event(error, self._request[REQUEST_ID])

    async def _end(self, last: bytes) -> None:
        assert self._watch is not None
        if last:
            await self._watch.write(last)
        await self._watch.finish(self.response.write_eof)

    def _cut(self) -> None:
        if self._request.transport is not None:
            self._request.transport.abort()


def _with_place(head: bytes, event: PlacedEvent) -> bytes:
    return event.event if event.place is None else b"%b%b\n%b" % (head, event.place, event.event)


def _log_failure(error: Exception) -> ApiError:
    """The client's view of `error`. The caller must not keep it: its traceback keeps the caller's variables alive."""
    api_error = to_api_error(error)
    if api_error.status == 500:
        log.exception("stream_failed")
    return api_error
