"""A response whose stream survives its connection: a task makes it, and its events are kept for whoever reads them."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from server.api.responses.response_call import ResponseCall
from server.http.entry.served import SERVED
from server.http.responses.answering import Answering
from server.http.responses.audience import LogAudience
from server.http.responses.background import tell_failure
from server.http.streams.held_stream import STREAM_HEADER
from server.http.streams.sse import write_placed
from server.http.transport.event_channel import EventChannel
from server.streams.held_answer import HeldAnswer
from server.streams.lanes import Lanes, Place


class HeldResponse:
    """Makes the events of one response, as the work of a `HeldAnswer` that has the id of the response.

    It is not made again after a restart of the server, because what came before it may have changed since.
    """

    def __init__(
        self,
        answering: Answering,
        turn: ResponseCall,
        request_id: str,
        accept: Callable[[object], object],
        *,
        is_told: bool,
    ) -> None:
        """Args:
        accept: called once the request is in the engine's queue.
        is_told: whether the client has an open stream before that, because it waits for the model.
        """
        self._answering = answering
        self._turn = turn
        self._request_id = request_id
        self._accept = accept
        self._is_told = is_told
        self._lanes: Lanes | None = None

    async def __call__(self, answer: HeldAnswer) -> None:
        lanes = self._open(answer)

        def accept(abort: Callable[[], object]) -> None:
            self._accept(abort)
            answer.begin(abort)

        await self._answering.answer(
            self._turn,
            LogAudience(answer.log, lambda event: lanes.append(event, None)),
            request_id=self._request_id,
            is_told=self._is_told,
            on_accepted=accept,
        )

    async def begin(self, request: web.Request, answer: HeldAnswer) -> web.StreamResponse:
        """Streams the events to the client that has asked for the response.

        Raises:
            ApiError: the request is refused.
        """
        return await self._follow(request, answer, self._open(answer).beginning, is_first=True)

    async def resume(self, request: web.Request, answer: HeldAnswer, after: str | None) -> web.StreamResponse:
        """Streams what follows the place `after`, or all without one; 204 where nothing follows.

        Raises:
            ApiError: there is no such place, or too many read the stream.
        """
        lanes = self._open(answer)
        had = lanes.beginning if after is None else lanes.parse(after)
        if lanes.is_end(had):
            return web.Response(status=204)
        return await self._follow(request, answer, had, is_first=False)

    def _open(self, answer: HeldAnswer) -> Lanes:
        """The lanes of the events, which are the same at every call."""
        if self._lanes is None:
            self._lanes = Lanes(answer.log, num_choices=1)
        return self._lanes

    async def _follow(
        self, request: web.Request, answer: HeldAnswer, had: Place, *, is_first: bool
    ) -> web.StreamResponse:
        served = request.app[SERVED]
        channel = EventChannel(request, served.settings, headers={STREAM_HEADER: answer.id})
        try:
            with answer.reading() as log:
                async with channel:
                    if not self._is_told:
                        await answer.begun()
                    await channel.open()
                    try:
                        await write_placed(channel, answer.id, self._open(answer), had)
                    except ConnectionError:
                        raise
                    except Exception as error:  # noqa: BLE001 - the status is sent, and the client is told by an event
                        await tell_failure(channel, error, log.num_events)
                    await channel.end()
        finally:
            if is_first and not channel.response.prepared:
                served.held.forget(answer)  # the client has never learnt its id
        return channel.response
