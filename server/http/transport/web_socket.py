"""WebSockets of the server: their frames in fair turns, the answers written to them, and how many are open."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from aiohttp import WebSocketError, WSCloseCode, WSMessage, WSMsgType, web, web_ws
from aiohttp.http_websocket import WebSocketReader

from server.admission.admission_budget import FairLimit
from server.admission.keyring import caller
from server.admission.loop_throttle import LoopThrottle
from server.http.transport.connection_writer import ConnectionWriter, DeltaSink, LogFollower
from server.http.transport.write_timeout import WriteTimeout
from server.protocol.errors import RETRY_AFTER_S, ApiError
from server.streams.stream import Encode, Stream

# What may be in a close frame, besides the codes of libraries and applications (RFC 6455, section 7.4).
_CLOSE_CODES = frozenset({*range(1000, 1004), *range(1007, 1015)})
_MESSAGES = frozenset({WSMsgType.TEXT, WSMsgType.BINARY, WSMsgType.CONTINUATION})
_ANSWERED_HERE = (WSMsgType.PING, WSMsgType.PONG)


class ClientFrames(WebSocketReader):
    """The parser of a client's frames; refuses what RFC 6455 forbids and aiohttp takes.

    Compiled or not, aiohttp's parser hands on what was masked as a `bytearray`, and what was not as `bytes`.
    """

    def __init__(self, *options: Any, **more: Any) -> None:
        super().__init__(*options, **more)
        self._is_in_message = False  # a message has begun and not ended

    def _handle_frame(self, fin: bool, opcode: int, payload: bytes | bytearray, compressed: int) -> None:
        try:
            reason = _why_forbidden(opcode, payload, is_in_message=self._is_in_message)
            if reason is not None:
                raise WebSocketError(WSCloseCode.PROTOCOL_ERROR, reason)
            if opcode in _MESSAGES:
                self._is_in_message = not fin
            super()._handle_frame(fin, opcode, payload, compressed)
        finally:
            del self  # the parser keeps its error, and the traceback of that error would keep the parser


def _why_forbidden(opcode: int, payload: bytes | bytearray, *, is_in_message: bool) -> str | None:
    if type(payload) is bytes:
        return "a client's frames are masked"
    if opcode in (WSMsgType.TEXT, WSMsgType.BINARY) and is_in_message:
        return "a message begins within another one"
    code = int.from_bytes(payload[:2], "big")
    if opcode == WSMsgType.CLOSE and len(payload) >= 2 and not (code in _CLOSE_CODES or 3000 <= code <= 4999):
        return f"{code} is not sent in a close frame"
    return None


web_ws.WebSocketReader = ClientFrames  # type: ignore[attr-defined] # there is no way to give a WebSocketResponse its parser


class FairSocket(web.WebSocketResponse):
    """A WebSocket that waits for the loop throttle after each frame: one read may bring forty thousand."""

    def __init__(self, turns: LoopThrottle, **options: Any) -> None:
        super().__init__(autoping=False, **options)
        self._turns = turns

    async def receive(self, timeout: float | None = None) -> WSMessage:  # noqa: ASYNC109
        """The next message; pings on the way are answered."""
        while True:
            message: WSMessage = await super().receive(timeout)
            if message.type is WSMsgType.PING:
                await self.pong(message.data)
            await self._turns.next()
            if message.type not in _ANSWERED_HERE:
                return message


class SocketStream(Stream):
    """The stream of all answers on one WebSocket. Its tasks write one at a time."""

    def __init__(self, timeout: WriteTimeout, writer: ConnectionWriter) -> None:
        self._timeout = timeout
        self._writer = writer
        self._writing = asyncio.Lock()

    async def write(self, events: Sequence[bytes]) -> None:
        """Sends messages; waits while the client is slow."""
        async with self._writing:
            for message in events:
                await self._timeout.write(message)

    def sink(self, encode: Encode) -> DeltaSink:
        return DeltaSink(encode, self._writer, self._writing.locked)

    def follower(self, frame: Callable[[bytes, bytes], bytes]) -> LogFollower:
        """What sends the events of a log without waiting."""
        return LogFollower(frame, self._writer, self._writing.locked)


class OpenSockets:
    """The open sockets of an application, whose number is limited; one tenant has a fair part (`FairLimit`)."""

    def __init__(self, most: int) -> None:
        self._limit = FairLimit(most)
        self._tenants: dict[web.WebSocketResponse, str] = {}

    def __iter__(self) -> Iterator[web.WebSocketResponse]:
        return iter(tuple(self._tenants))

    def __len__(self) -> int:
        return len(self._tenants)

    def check_room(self) -> None:
        """Raises ApiError (429): no more sockets may be opened, or none by the running task's tenant."""
        limit, own = self._limit, self._limit.part_of(caller())
        if limit.has_room_for(caller()):
            return
        bound = f"{own}; the limit of this server is {limit.limit}" if own else ", the limit of this server"
        raise ApiError(
            f"{limit.total} WebSockets are open{bound}; try again later",
            status=429,
            error_type="rate_limit_error",
            code="too_many_websockets",
            headers={"Retry-After": str(RETRY_AFTER_S)},
        )

    def add(self, socket: web.WebSocketResponse) -> None:
        """Counts a socket, which belongs to the tenant for whom the running task works."""
        self._tenants[socket] = caller()
        self._limit.take(caller())

    def discard(self, socket: web.WebSocketResponse) -> None:
        """Counts the socket no longer, if it was counted."""
        tenant = self._tenants.pop(socket, None)
        if tenant is not None:
            self._limit.give_back(tenant)
