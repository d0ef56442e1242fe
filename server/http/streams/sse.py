"""An HTTP response to which a generation is written, chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

from aiohttp import web

from engine.interface.types import PromptProgress
from server.api.encoding import encode
from server.api.route import BodyRoute, Call, StreamWriter
from server.generation.generation import Generation
from server.generation.observer import ProgressObserver
from server.http.entry.access_log import REQUEST_ID
from server.http.streams.held_stream import STREAM_HEADER
from server.http.streams.writer_sink import WriterSink
from server.http.transport.event_channel import EventChannel
from server.protocol.errors import ApiError
from server.serving.served_model import ServedModel
from server.serving.served_models import ServedModels
from server.startup.logs import failure_of
from server.streams.lanes import Lanes, Place, PlacedEvent

_OF_THIS_SERVER = ("draining", "engine_failed")  # errors that the same request does not meet at another one


class EventStream(EventChannel):
    """The streamed answer to one request. Once it is open, an error is told to the client as its last event."""

    def __init__(
        self,
        request: web.Request,
        route: BodyRoute,
        served: ServedModels,
        stream_id: str | None = None,
        *,
        is_fronted: bool = False,
    ) -> None:
        """
        Args:
            stream_id: by which the client can resume it, or that it cannot.
            is_fronted: whether the client is a front that goes on elsewhere where this server breaks off.
        """
        headers = None if stream_id is None else {STREAM_HEADER: stream_id}
        super().__init__(request, served.settings, framing=route.framing, headers=headers)
        self._route = route
        self._served = served
        self._is_fronted = is_fronted
        self._writer: StreamWriter | None = None  # of what has begun to be streamed

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        try:
            if not self.is_open or not isinstance(error, Exception) or isinstance(error, ConnectionError):
                return False  # nobody hears it here: a broken connection takes no event
            last = self._encode_failure(failure_of(error, "stream_failed"))
            if last is None:
                self._cut()
            else:
                await self.end(last)
            return True
        finally:
            self._writer = None
            await super().__aexit__(kind, error, trace)

    async def stream(self, generation: Generation, writer: StreamWriter) -> None:
        """Streams `generation` to its end; the stream is open.

        The caller owns the generation and aborts it when this is cancelled, which happens when
        the client leaves or its socket stalls beyond the write timeout.
        """
        self._writer = writer
        sink = WriterSink(writer.encode, self.outlet)
        async for deltas in generation:
            # What is large or slow comes with the first deltas, or is written here because the client is slow.
            await self.write(b"".join(await encode(writer, deltas, self._served.workers)))
            await generation.push(sink)
        await self.end(writer.end())

    def progress_observer(self, call: Call[Any], request_id: str, model: ServedModel) -> ProgressObserver:
        """What writes how the answer to `call` waits. It may be used before the stream is open, which it then opens."""

        async def tell(progress: PromptProgress, index: int) -> None:
            told = call.encode_progress(progress, index, self._route.framing, request_id, model.model_name)
            await self.open(told)

        return ProgressObserver(tell)

    async def follow(self, stream_id: str, lanes: Lanes, had: Place) -> None:
        """Streams what follows `had` of a resumable stream; each event has its place. The stream is open.

        Raises:
            ApiError: as `Lanes.read`.
        """
        await write_placed(self, stream_id, lanes, had)
        await self.end()

    def _encode_failure(self, error: ApiError) -> bytes | None:
        """The last event; None for a front that goes on elsewhere, and knows by a broken connection that it should."""
        if self._is_fronted and error.code in _OF_THIS_SERVER:
            return None
        told = b"" if self._writer is None else self._writer.encode_error(error)
        return told or self._route.encode_error_event(error, self._request[REQUEST_ID])


async def write_placed(channel: EventChannel, stream_id: str, lanes: Lanes, had: Place) -> None:
    """Writes what follows `had` to an open channel, each event with a line for its place, if it has one.

    Raises:
        ApiError: as `Lanes.read`.
    """
    head = b"id: " + stream_id.encode() + b":"

    def frame(events: Sequence[PlacedEvent]) -> list[bytes]:
        return [event if place is None else b"%b%b\n%b" % (head, place, event) for place, event, _ in events]

    async for events in lanes.read(had, WriterSink(frame, channel.outlet)):
        await channel.write(b"".join(frame(events)))
