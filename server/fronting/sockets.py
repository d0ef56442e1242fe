"""WebSockets through the front: each is one connection to one replica, whose messages pass as they are."""

from __future__ import annotations

import asyncio
from typing import TypeAlias

import aiohttp
from aiohttp import WSCloseCode, WSMsgType, web

from server.fronting.front import FRONT, Front
from server.fronting.passing import request_headers
from server.fronting.replica import Replica
from server.http.websocket import OPEN_SOCKETS, open_socket
from server.startup.logs import log, note

Socket: TypeAlias = web.WebSocketResponse | aiohttp.ClientWebSocketResponse[bool]

_LOST = b"the server that worked on this socket was lost"
_NO_ROOM = b"no server takes this socket at the moment"


async def relay_socket(request: web.Request) -> web.WebSocketResponse:
    """GET of a route of sockets: joins the client with the replica that has the least to do."""
    front = request.app[FRONT]
    front.check_accepting()
    replica = front.replicas.choose()
    protocols = [name.strip() for name in request.headers.get("Sec-WebSocket-Protocol", "").split(",") if name.strip()]
    socket = await open_socket(request, request.path, front.settings)
    try:
        with replica.use():
            await _join(request, front, replica, socket, protocols)
    finally:
        request.app[OPEN_SOCKETS].discard(socket)
    return socket


async def _join(
    request: web.Request, front: Front, replica: Replica, socket: web.WebSocketResponse, protocols: list[str]
) -> None:
    note(replica=replica.name)
    headers, interval = request_headers(request), front.settings.ping_interval
    try:
        async with replica.open_socket(request.path_qs, headers, protocols, interval) as inner:
            inward, outward = (
                asyncio.create_task(_carry(socket, inner)),
                asyncio.create_task(_carry(inner, socket)),
            )
            try:
                await asyncio.wait((inward, outward), return_when=asyncio.FIRST_COMPLETED)
            finally:
                inward.cancel()
                outward.cancel()
                await asyncio.gather(inward, outward, return_exceptions=True)
            if not socket.closed:  # the replica has closed it, or is no more
                is_lost = inner.close_code is None or inner.close_code == WSCloseCode.ABNORMAL_CLOSURE
                code = WSCloseCode.SERVICE_RESTART if is_lost else inner.close_code
                await socket.close(code=int(code or WSCloseCode.OK), message=_LOST if is_lost else b"")
    except aiohttp.ClientError as error:
        log.warning("replica_lost", replica=replica.name, reason=str(error))
        await socket.close(code=WSCloseCode.TRY_AGAIN_LATER, message=_NO_ROOM)


async def _carry(sender: Socket, receiver: Socket) -> None:
    """Waits while the receiver is slow, and with it whoever sends to it."""
    async for message in sender:
        if message.type is WSMsgType.TEXT:
            await receiver.send_str(message.data)
        elif message.type is WSMsgType.BINARY:
            await receiver.send_bytes(message.data)
