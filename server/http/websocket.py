"""WebSocket routes: opens the sockets, reads their messages, and closes them when the server ends."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias

from aiohttp import WSCloseCode, WSMsgType, hdrs, web
from aiohttp.typedefs import Handler

from server.admission.keyring import WEBSOCKET_PROTOCOL
from server.api.route import MessageRoute
from server.http.entry.guard import GUARD, TENANT
from server.http.entry.served import SERVED
from server.http.streams.generation_socket import GenerationSocket
from server.http.streams.request_store import REQUEST_STORE
from server.http.transport.aiohttp_internals import untie_socket
from server.http.transport.connection_writer import ConnectionWriter, text_frames
from server.http.transport.connections import TURNS
from server.http.transport.web_socket import FairSocket, OpenSockets, SocketStream
from server.http.transport.write_timeout import WriteTimeout
from server.protocol.errors import ApiError, shorten
from server.startup.settings import ServerSettings

# aiohttp can only close on a message above its limit. One that is larger than a body may be by so many bytes is
# answered with an error instead; the socket buffers no more than that.
SLACK_BYTES = 64 << 10
WRITER_LIMIT = 16 << 10  # bytes written before the socket's backlog is looked at
CLOSE_TIMEOUT_S = 2.0  # for the client's half of the closing handshake

_HANDSHAKE = (
    hdrs.UPGRADE, hdrs.CONNECTION, hdrs.SEC_WEBSOCKET_VERSION, hdrs.SEC_WEBSOCKET_KEY, hdrs.SEC_WEBSOCKET_PROTOCOL,
    hdrs.SEC_WEBSOCKET_EXTENSIONS,
)  # fmt: skip

_VERSION = "13"

OPEN_SOCKETS = web.AppKey("open_sockets", OpenSockets)


class SocketMessages(AbstractAsyncContextManager["SocketMessages"], Protocol):
    """Handles the messages of one socket while the context lasts."""

    async def receive(self, text: str) -> None: ...

    async def refuse_binary(self) -> None: ...


OpenMessages: TypeAlias = Callable[[web.Request, SocketStream], SocketMessages]


def make_handler(route: MessageRoute) -> Handler:
    """The handler of a GET request that is to become a socket of `route`."""

    def open_messages(request: web.Request, stream: SocketStream) -> GenerationSocket:
        return GenerationSocket(route, request.app[SERVED], stream, request[TENANT], request.app[REQUEST_STORE])

    return make_socket_handler(route.path, open_messages)


def make_socket_handler(path: str, open_messages: OpenMessages) -> Handler:
    """The handler of a GET request that is to become a socket, whose messages go to what `open_messages` gives."""

    async def handle(request: web.Request) -> web.WebSocketResponse:
        socket = await open_socket(request, path, request.app[SERVED].settings)
        try:
            await _serve(request, socket, open_messages)
        finally:
            request.app[OPEN_SOCKETS].discard(socket)
            untie_socket(socket)
        return socket

    return handle


async def open_socket(request: web.Request, path: str, settings: ServerSettings) -> FairSocket:
    """The request's WebSocket, now one of the open ones; raises ApiError where it is none, or too many are open."""
    socket = FairSocket(
        request.app[TURNS],
        timeout=CLOSE_TIMEOUT_S,
        heartbeat=settings.ping_interval,
        max_msg_size=settings.max_body_bytes + SLACK_BYTES,
        writer_limit=WRITER_LIMIT,
        protocols=(WEBSOCKET_PROTOCOL,),
        compress=False,  # a delta is too short to gain by it
    )
    # aiohttp fails on a handshake that is not ASCII.
    is_text = all(value.isascii() for name in _HANDSHAKE for value in request.headers.getall(name, ()))
    version = ", ".join(request.headers.getall(hdrs.SEC_WEBSOCKET_VERSION, (_VERSION,)))
    if version != _VERSION:
        raise ApiError(
            f"Sec-WebSocket-Version is {shorten(version)}; this server speaks version {_VERSION} (RFC 6455)",
            status=426,
            code="upgrade_required",
            headers={"Upgrade": "websocket", "Connection": "Upgrade", hdrs.SEC_WEBSOCKET_VERSION: _VERSION},
        )
    if not is_text or not socket.can_prepare(request):
        raise ApiError(
            f"{path} is a WebSocket; ask for it with an upgrade (a ws:// or wss:// address)",
            status=426,
            code="upgrade_required",
            headers={"Upgrade": "websocket", "Connection": "Upgrade"},
        )
    request.app[OPEN_SOCKETS].check_room()
    await socket.prepare(request)
    request.app[OPEN_SOCKETS].add(socket)
    return socket


async def close_sockets(app: web.Application) -> None:
    """Closes every open WebSocket with code 1001, going away (an `on_shutdown` signal)."""
    sockets = app[OPEN_SOCKETS]
    await asyncio.gather(
        *(
            socket.close(code=WSCloseCode.GOING_AWAY, message=b"the server is shutting down")
            for socket in tuple(sockets)
        )
    )


async def _serve(request: web.Request, socket: web.WebSocketResponse, open_messages: OpenMessages) -> None:
    """Handles the client's messages until one side closes."""
    served = request.app[SERVED]

    def cut() -> None:
        if request.transport is not None:
            request.transport.abort()

    async def write(message: bytes) -> None:
        await socket.send_frame(message, WSMsgType.TEXT)

    writer = ConnectionWriter(request.protocol, text_frames, lambda: socket.closed)
    timeout = WriteTimeout(
        write,
        cut,
        ping=b"",  # aiohttp's heartbeat pings
        ping_interval=served.settings.ping_interval,
        write_timeout=served.settings.write_timeout,
        writer=writer,
    )
    guard, tenant = request.app[GUARD], request[TENANT]
    async with timeout, open_messages(request, SocketStream(timeout, writer)) as messages:
        async for message in socket:
            if not guard.still_admits(tenant):
                await socket.close(code=WSCloseCode.POLICY_VIOLATION, message=b"the API key is not known any more")
                break
            match message.type:
                case WSMsgType.TEXT:
                    await messages.receive(message.data)
                case WSMsgType.BINARY:
                    await messages.refuse_binary()
                case _:
                    break
