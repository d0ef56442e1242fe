"""The WebSocket mode of /v1/responses: many responses on one socket, told apart by the client's `stream_id`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import orjson
from aiohttp import web

from server.admission.admission_budget import Reservation
from server.admission.keyring import Tenant
from server.api.conversations.response_records import ConnectionRecords
from server.api.openai.openai_objects import error_object
from server.api.responses.response_call import ResponseCall
from server.api.responses.responses_request import ResponsesRequest
from server.api.route import checked
from server.http.entry.guard import TENANT
from server.http.entry.served import SERVED, ignored_in
from server.http.responses.response_runner import ResponseRunner
from server.http.transport.web_socket import SocketStream
from server.protocol.errors import ApiError, body_too_large, shorten
from server.protocol.json_limits import MAX_INLINE_BYTES, parse_json
from server.serving.served_models import ServedModels
from server.startup.logs import failure_of
from server.telemetry.trace_context import take_from

MAX_RESPONSES = 256  # that run or wait on one socket
MAX_LANE_LENGTH = 128  # characters of a lane's name
LOCAL_SHARE = 4  # a socket remembers so many times the bytes of the largest message


class _Create(NamedTuple):
    """A message that asks for a response."""

    lane: str | None
    body: dict[str, Any]
    is_warm_up: bool


class _Cancel(NamedTuple):
    """A message that ends a response early: the one of its lane that runs, or the one that it names."""

    lane: str | None
    response_id: str | None


class _Refusal(NamedTuple):
    """A message that is refused, with its error."""

    lane: str | None
    error: ApiError


class _Running:
    """A response whose turn has come."""

    def __init__(self, lane: str | None) -> None:
        self.lane = lane
        self.response_id: str | None = None
        self._abort: Callable[[], object] | None = None
        self._is_cancelled = False

    def accept(self, abort: Callable[[], object]) -> None:
        """Says how it is aborted, which may have been asked for before."""
        self._abort = abort
        if self._is_cancelled:
            abort()

    def cancel(self) -> None:
        """Ends it with what it has."""
        self._is_cancelled = True
        if self._abort is not None:
            self._abort()


class ResponseSocket:
    """One socket's responses, used as `async with`, which ends them.

    Responses of one lane, or without one, come in the order of their messages; lanes run side by side. The socket
    remembers its last responses, also those that are not stored.
    """

    def __init__(self, served: ServedModels, stream: SocketStream, tenant: Tenant) -> None:
        self._account = tenant.account
        self._served = served
        self._stream = stream
        self._local = ConnectionRecords(LOCAL_SHARE * served.settings.max_body_bytes)
        self._runner = ResponseRunner(served, tenant, self._local, as_messages=True)
        self._tasks: set[asyncio.Task[None]] = set()
        self._num_waiting_bytes = 0  # of messages whose turn has not come
        self._last: dict[str | None, asyncio.Task[None]] = {}  # of each lane
        self._running: list[_Running] = []

    async def __aenter__(self) -> ResponseSocket:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def receive(self, text: str) -> None:
        """Handles one text message; answers an invalid one with an error."""
        max_bytes, is_large = self._served.settings.max_body_bytes, len(text) > MAX_INLINE_BYTES
        # While a large message is read, the socket's next one waits.
        message = await self._served.workers.run_large(_read, text, max_bytes) if is_large else _read(text, max_bytes)
        try:
            match message:
                case _Create():
                    self._start(message, len(text))
                case _Cancel():
                    self._cancel(message)
        except ApiError as error:
            message = _Refusal(message.lane, error.without_traces())
        if isinstance(message, _Refusal):
            await self._stream.write([_encode_error(message.lane, message.error)])

    async def refuse_binary(self) -> None:
        """Answers a binary message with an error; only text messages are accepted."""
        error = ApiError("the frame is binary; it must be text", code="binary_frame")
        await self._stream.write([_encode_error(None, error)])

    def _start(self, message: _Create, num_bytes: int) -> None:
        if len(self._tasks) >= MAX_RESPONSES:
            raise ApiError(
                f"{MAX_RESPONSES} responses run or wait on this socket, the limit; wait for one to end",
                status=429,
                error_type="rate_limit_error",
                code="too_many_generations",
            )
        lane = message.lane
        before = self._last.get(lane)
        most = self._served.settings.max_body_bytes
        if before is not None and self._num_waiting_bytes + num_bytes > most:
            raise ApiError(
                f"{self._num_waiting_bytes} bytes of messages wait on this socket for the responses before them; "
                f"the limit is {most}",
                status=429,
                error_type="rate_limit_error",
                code="too_much_waits",
            )
        if self._account is not None:
            self._account.begin_request()
        preparing = ExitStack()
        share = preparing.enter_context(self._served.admission_budget.receive())
        share.add(num_bytes)
        if before is None:
            share.complete()  # one that waits for others is not being prepared
        task = asyncio.create_task(self._run(message, before, preparing, share))
        self._tasks.add(task)
        self._last[lane] = task

        if before is not None:
            self._num_waiting_bytes += num_bytes

        def end(ended: asyncio.Task[None]) -> None:
            preparing.close()
            self._tasks.discard(ended)
            if self._last.get(lane) is ended:
                del self._last[lane]

        task.add_done_callback(end)

    def _cancel(self, message: _Cancel) -> None:
        lane, named = message
        if named is None:
            found, reason = [one for one in self._running if one.lane == lane], "no response runs in this stream"
        else:
            found = [one for one in self._running if one.response_id == named]
            reason = f"the response {shorten(named)} does not run on this socket"
        if not found:
            param = None if named is None else "response_id"
            raise ApiError(reason, status=404, param=param, code="not_found")
        for one in found:
            one.cancel()

    async def _run(
        self, message: _Create, before: asyncio.Task[None] | None, preparing: ExitStack, share: Reservation
    ) -> None:
        """One response from its message to its last event."""
        is_large = share.num_bytes > MAX_INLINE_BYTES
        running = _Running(message.lane)
        take_from(message.body)
        try:
            if before is not None:
                try:
                    await asyncio.wait([before])
                finally:
                    self._num_waiting_bytes -= share.num_bytes
                await self._served.turns.next()  # the responses of many lanes may end together
                share.complete()
            self._running.append(running)
            turn = await self._served.workers.run_large(_parse, message) if is_large else _parse(message)
            running.response_id = turn.id
            self._served.ignored_parameters.tell(ignored_in(turn, self._served))
            await self._runner.look_back(turn, share)

            def accept(abort: Callable[[], object]) -> None:
                preparing.close()
                running.accept(abort)

            response = await self._runner.run(turn, self._stream, request_id=turn.body.request_id, on_accepted=accept)
        except ConnectionError:
            return  # the reading side ends the socket
        except Exception as error:  # noqa: BLE001 - any failure is told on the socket
            self._forget_previous(message)
            refusal = _encode_error(message.lane, failure_of(error, "response_failed"))
        else:
            if response["status"] == "failed":
                self._forget_previous(message)
            return
        finally:
            if running in self._running:
                self._running.remove(running)
        try:
            await self._stream.write([refusal])
        except ConnectionError:
            return

    def _forget_previous(self, message: _Create) -> None:
        """Forgets what a failed message followed, as OpenAI's server does; what is stored can be followed again."""
        previous = message.body.get("previous_response_id")
        if isinstance(previous, str):
            self._local.forget(previous)


def open_socket(request: web.Request, stream: SocketStream) -> ResponseSocket:
    """Makes the handler of the messages on the WebSocket that `request` was upgraded to."""
    return ResponseSocket(request.app[SERVED], stream, request[TENANT])


def _read(text: str, max_bytes: int) -> _Create | _Cancel | _Refusal:
    """Parses a client's message; one of more than `max_bytes` in UTF-8 is refused."""
    lane = None
    try:
        if len(text) > max_bytes or len(text.encode()) > max_bytes:
            raise body_too_large(max_bytes)
        frame = parse_json(text, "frame")
        if not isinstance(frame, dict):
            raise ApiError(f"the frame is {shorten(frame)}; it must be an object", code="invalid_type")
        lane = _take(frame, "stream_id", lambda name: name is None or _is_name(name), "a short string")
        kind = frame.pop("type", None)
        if kind == "response.cancel":
            return _Cancel(lane, _take(frame, "response_id", _is_id, "the id of a response"))
        if kind != "response.create":
            raise ApiError(
                f"type is {shorten(kind)}; it must be response.create or response.cancel",
                param="type",
                code="invalid_value",
            )
        frame.pop("stream", None)  # a socket always streams
        is_generated = _take(frame, "generate", lambda value: value in (None, True, False), "true or false")
        for name in ("background", "resumable"):
            if frame.get(name):
                raise ApiError(
                    f"{name} is true; a response on a socket ends with it", param=name, code="unsupported_parameter"
                )
        return _Create(lane, frame, is_generated is False)
    except ApiError as error:
        return _Refusal(lane, error.without_traces())


def _take(frame: dict[str, Any], name: str, fits: Callable[[Any], bool], demand: str) -> Any:
    value = frame.pop(name, None)
    if not fits(value):
        raise ApiError(f"{name} is {shorten(value)}; it must be {demand}", param=name, code="invalid_value")
    return value


def _is_id(value: object) -> bool:
    return value is None or isinstance(value, str)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= MAX_LANE_LENGTH


def _parse(message: _Create) -> ResponseCall:
    body = checked(lambda: ResponsesRequest.parse({**message.body, "stream": True}))
    return ResponseCall(body, stream_id=message.lane, is_warm_up=message.is_warm_up)


def _encode_error(lane: str | None, error: ApiError) -> bytes:
    """Encodes the error message of a refused request."""
    named = {} if lane is None else {"stream_id": lane}
    return orjson.dumps({"type": "error", "status": error.status, **error_object(error), **named})
