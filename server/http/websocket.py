"""The WebSocket /v1/stream: many generations at once on one socket, told apart by the client's id."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

import orjson
from aiohttp import WSCloseCode, WSMsgType, web

from server.answering.choice import Delta
from server.answering.generation import Generation
from server.http.service import SERVICE, Service
from server.http.write_watch import WriteWatch
from server.routes.answer import note_progress
from server.routes.logprobs import WireLogprobs, wire_logprobs
from server.startup.logs import log, new_request_id, note
from server.wire.errors import ApiError, shorten, to_api_error
from server.wire.requests import ChatCompletionRequest, CompletionRequest, GenerationRequest

MAX_GENERATIONS = 256  # at once on one socket
MAX_ID_LENGTH = 128  # characters
# aiohttp can only close on a frame above its limit; up to here it is answered with an error instead.
HARD_LIMIT_FACTOR = 4
WRITER_LIMIT = 16 << 10  # bytes written before the socket's backlog is looked at
CLOSE_TIMEOUT_S = 3.0  # for the client's half of the closing handshake

_UNSET = object()


async def stream(request: web.Request) -> web.WebSocketResponse:
    """GET /v1/stream, upgraded."""
    service = request.app[SERVICE]
    _check_origin(request, service.settings.allowed_origins)
    socket = web.WebSocketResponse(
        timeout=CLOSE_TIMEOUT_S,
        heartbeat=service.settings.ping_interval,
        max_msg_size=service.settings.max_body_bytes * HARD_LIMIT_FACTOR,
        writer_limit=WRITER_LIMIT,
        compress=False,  # a delta is too short to gain by it
    )
    if not socket.can_prepare(request):
        raise ApiError(
            "/v1/stream is a WebSocket; ask for it with an upgrade (a ws:// or wss:// address)",
            status=426,
            code="upgrade_required",
            headers={"Upgrade": "websocket", "Connection": "Upgrade"},
        )
    await socket.prepare(request)
    service.sockets.add(socket)

    def cut() -> None:
        if request.transport is not None:
            request.transport.abort()

    async def write(frame: bytes) -> None:
        await socket.send_frame(frame, WSMsgType.TEXT)

    watch = WriteWatch(
        write,
        cut,
        ping=b"",  # aiohttp's heartbeat pings
        ping_interval=service.settings.ping_interval,
        write_timeout=service.settings.write_timeout,
    )
    try:
        async with watch, StreamSocket(service, watch) as stream_socket:
            async for message in socket:
                match message.type:
                    case WSMsgType.TEXT:
                        await stream_socket.receive(message.data)
                    case WSMsgType.BINARY:
                        await stream_socket.refuse_binary()
                    case _:
                        break
    finally:
        service.sockets.discard(socket)
    return socket


class StreamSocket:
    """One socket's generations; used as `async with`, which aborts them at its end.

    Each generation has a task that reads deltas and writes them as frames, one task at a time.
    While the client is slow all of them wait, and the engine's mailboxes merge what comes
    meanwhile: nothing else is buffered.
    """

    def __init__(self, service: Service, watch: WriteWatch) -> None:
        self._service = service
        self._watch = watch
        self._writing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()  # each to the end of its last write
        self._running: set[str] = set()  # ids, from the generate frame until the terminal message is due
        self._generations: dict[str, Generation] = {}  # those of them that are submitted, by id
        self._cancelled: set[str] = set()  # cancelled before they were submitted

    async def __aenter__(self) -> StreamSocket:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for generation in self._generations.values():
            generation.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def receive(self, text: str) -> None:
        """Obeys one text frame, or answers with an error."""
        client_id = None
        try:
            frame = self._parse(text)
            client_id = _read_id(frame)
            match frame.pop("type", _UNSET):
                case "generate":
                    self._start(client_id, frame)
                case "cancel":
                    self._cancel(client_id, frame)
                case kind if kind is _UNSET:
                    raise ApiError("type is required", param="type", code="missing_required_parameter")
                case kind:
                    raise ApiError(
                        f"type is {shorten(kind)}; it must be generate or cancel", param="type", code="invalid_value"
                    )
        except ApiError as error:
            await self._send_error(client_id, error)

    async def refuse_binary(self) -> None:
        await self._send_error(None, ApiError("the frame is binary; it must be text", code="binary_frame"))

    def _parse(self, text: str) -> dict[str, Any]:
        limit = self._service.settings.max_body_bytes
        if len(text) > limit or len(text.encode()) > limit:
            raise ApiError(
                f"the frame is larger than {limit} bytes, the limit of this server", code="body_too_large", status=413
            )
        try:
            frame = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise ApiError(f"the frame is not valid JSON: {error}", code="invalid_json") from error
        if not isinstance(frame, dict):
            raise ApiError(f"the frame is {shorten(frame)}; it must be an object", code="invalid_type")
        return frame

    def _start(self, client_id: str, frame: dict[str, Any]) -> None:
        if client_id in self._running:
            raise ApiError(
                f"the id {shorten(client_id)} is already running on this socket; it goes on",
                param="id",
                code="duplicate_id",
            )
        if len(self._tasks) >= MAX_GENERATIONS:
            raise ApiError(
                f"{MAX_GENERATIONS} generations run on this socket, the limit; wait for one to end",
                status=429,
                error_type="rate_limit_error",
                code="too_many_generations",
            )
        self._running.add(client_id)
        task = asyncio.create_task(self._run(client_id, frame))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _cancel(self, client_id: str, frame: dict[str, Any]) -> None:
        if frame:
            name = next(iter(frame))
            raise ApiError(f"unknown parameter {shorten(name)} of cancel", param=name, code="unknown_parameter")
        if client_id not in self._running:
            raise ApiError(
                f"no generation with the id {shorten(client_id)} runs on this socket", param="id", code="unknown_id"
            )
        if client_id in self._generations:
            self._generations[client_id].abort()
        else:
            self._cancelled.add(client_id)

    async def _run(self, client_id: str, frame: dict[str, Any]) -> None:
        """One generation from its frame to its terminal message."""
        stream_id = new_request_id()
        try:
            request = _parse_request(frame)
            stream_id = request.request_id or stream_id
            note(stream_id=stream_id)
            terminal = await self._generate(client_id, stream_id, request)
        except ConnectionError:
            return  # the reading side ends the socket
        except Exception as error:  # noqa: BLE001 - any failure is this id's terminal message
            api_error = to_api_error(error)
            if api_error.status == 500:
                log.exception("stream_failed")
            terminal = _error_frame(client_id, api_error)
            log.info("stream_refused", code=api_error.code, param=api_error.param)
        finally:
            # Free before the terminal message leaves: whoever reads it may use the id again.
            self._running.discard(client_id)
            self._cancelled.discard(client_id)
        try:
            await self._send(terminal)
        except ConnectionError:
            return

    async def _generate(self, client_id: str, stream_id: str, request: GenerationRequest) -> bytes:
        """Streams to the end and returns the terminal frame."""
        async with self._service.generate(request) as generation:
            self._generations[client_id] = generation
            if client_id in self._cancelled:
                generation.abort()
            try:
                await self._send(
                    orjson.dumps(
                        {
                            "type": "start",
                            "id": client_id,
                            "stream_id": stream_id,
                            "model": self._service.model_name,
                            "usage": {"prompt_tokens": generation.usage.num_prompt_tokens},
                        }
                    )
                )
                head = b'{"type":"delta","id":%b,"index":' % orjson.dumps(client_id)
                logprobs = wire_logprobs(request, generation, self._service.tokenizer)
                async for deltas in generation:
                    for delta in deltas:
                        if delta.text or delta.token_ids:
                            await self._send(_delta_frame(head, delta, logprobs))
            finally:
                del self._generations[client_id]
                note_progress(generation)
            done: dict[str, object] = {
                "type": "done",
                "id": client_id,
                "finish_reason": generation.finish_reason,
                "usage": generation.usage.to_dict(),
            }
            if generation.num_choices > 1:
                done["finish_reasons"] = generation.finish_reasons
            log.info("stream_done", duration=round(generation.duration, 6))
            return orjson.dumps(done)

    async def _send(self, frame: bytes) -> None:
        async with self._writing:
            await self._watch.write(frame)

    async def _send_error(self, client_id: str | None, error: ApiError) -> None:
        await self._send(_error_frame(client_id, error))


async def close_all(service: Service) -> None:
    """Says goodbye to every open socket."""
    await asyncio.gather(
        *(
            socket.close(code=WSCloseCode.GOING_AWAY, message=b"the server is shutting down")
            for socket in list(service.sockets)
        )
    )


def _delta_frame(head: bytes, delta: Delta, logprobs: WireLogprobs | None) -> bytes:
    return b'%b%d,"text":%b,"token_ids":%b%b}' % (
        head,
        delta.index,
        orjson.dumps(delta.text),
        orjson.dumps(delta.token_ids),
        b"" if logprobs is None else b',"logprobs":' + logprobs.encode(delta) + logprobs.encode_prompt(delta),
    )


def _error_frame(client_id: str | None, error: ApiError) -> bytes:
    return orjson.dumps({"type": "error", "id": client_id, "error": error.to_dict()})


def _read_id(frame: dict[str, Any]) -> str:
    client_id = frame.pop("id", None)
    if not isinstance(client_id, str) or not 1 <= len(client_id) <= MAX_ID_LENGTH:
        raise ApiError(
            f"id is {shorten(client_id)}; it must be a string of 1 to {MAX_ID_LENGTH} characters",
            param="id",
            code="invalid_value",
        )
    return client_id


def _parse_request(frame: dict[str, Any]) -> GenerationRequest:
    """
    Raises:
        ApiError, ValidationError: it is not a valid request.
    """
    if frame.setdefault("stream", True) is not True:
        raise ApiError(
            f"stream is {shorten(frame['stream'])}; a WebSocket always streams", param="stream", code="invalid_value"
        )
    if "messages" not in frame:
        return CompletionRequest.parse(frame)
    if "prompt" in frame:
        raise ApiError("prompt and messages are both given; give one of them", param="prompt", code="invalid_value")
    return ChatCompletionRequest.parse(frame)


def _check_origin(request: web.Request, allowed: tuple[str, ...]) -> None:
    """Any web page may try to open a socket to this machine; only our own and the allowed ones may.

    Raises:
        ApiError: 403 for any other.
    """
    origin = request.headers.get("Origin")
    if origin is None or origin in allowed:
        return
    try:
        is_own = urlsplit(origin).netloc == request.host
    except ValueError:  # it is no address at all
        is_own = False
    if not is_own:
        raise ApiError(
            f"the origin {shorten(origin)} may not open a socket here; see --allowed-origins",
            status=403,
            error_type="permission_error",
            code="origin_not_allowed",
        )
