"""A resumable response: a task of its own generates it, and its stream is logged for clients that come back."""

from collections.abc import Callable

from aiohttp import web

from server.api.responses.events import error_event
from server.api.responses.response_call import ResponseCall
from server.http.responses.response_runner import ResponseRunner
from server.http.streams.router_headers import STREAM_HEADER
from server.http.transport.event_stream import EventStreamResponse
from server.startup.settings import ServerSettings
from server.streams.stream import LoggedStream


class ResumableResponse:
    """Produces the events of one response, in a stream with the id of the response; see `ResumableOverHttp`.

    It is not computed again after a restart of the server, because what came before it may have changed since.
    """

    def __init__(
        self, settings: ServerSettings, runner: ResponseRunner, turn: ResponseCall, request_id: str,
        on_accepted: Callable[[object], object], *, is_told: bool,
    ) -> None:  # fmt: skip
        """Calls `on_accepted` once the request is queued; `is_told` where the client's stream is open before that."""
        self._settings = settings
        self._runner = runner
        self._turn = turn
        self._request_id = request_id
        self._on_accepted = on_accepted
        self._is_told = is_told

    async def __call__(self, stream: LoggedStream) -> None:
        def accept(abort: Callable[[], object]) -> None:
            self._on_accepted(abort)
            stream.begin(abort)

        await self._runner.run(
            self._turn, stream, request_id=self._request_id, is_told=self._is_told, on_accepted=accept
        )

    def check_transport(self) -> None:
        """Never raises: such a stream always begins over HTTP."""

    def respond(self, request: web.Request, stream: LoggedStream) -> EventStreamResponse:
        return EventStreamResponse(
            request, self._settings, headers={STREAM_HEADER: stream.id},
            encode_error=lambda error: error_event(error, stream.log.num_events),
        )  # fmt: skip

    async def wait_begun(self, response: EventStreamResponse, stream: LoggedStream) -> None:
        if not self._is_told:
            await stream.begun()
