"""WebSockets through the front: each is one connection to one replica, whose messages pass as they are.

The first message decides which replica that is: there is no greeting, and a client that comes back for a stream, or
goes on with a stored response, says so first.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, TypeAlias

import aiohttp
import orjson
from aiohttp import WSCloseCode, WSMsgType, web

from server.admission.keyring import presented_key
from server.http.websocket import OPEN_SOCKETS, open_socket
from server.protocol.errors import ApiError
from server.router.front import FRONT, Asked, Front, deciding_fields
from server.router.owned_routes import find_owner, place_of_history
from server.router.proxy_response import MAX_EVENT, request_headers
from server.router.replica import Replica
from server.router.replicas import no_replica
from server.startup.logs import log, note

Socket: TypeAlias = web.WebSocketResponse | aiohttp.ClientWebSocketResponse[bool]

MAX_READ_CHARS = 64 << 10  # of a first message; decoding as many takes three milliseconds at worst
_STREAM_ID = re.compile(r"[0-9a-f]{32}")
_LOST = b"the server that worked on this socket was lost"
_BROKEN_OFF = (None, WSCloseCode.ABNORMAL_CLOSURE)
_NO_ROOM = b"no server takes this socket at the moment"


async def relay_socket(request: web.Request) -> web.WebSocketResponse:
    """GET of a route of sockets: joins the client with the replica that has what its first message names, or else with
    the one that has the least to do.
    """
    front = request.app[FRONT]
    front.check_accepting()
    if not front.replicas.usable:
        raise no_replica()
    protocols = [name.strip() for name in request.headers.get("Sec-WebSocket-Protocol", "").split(",") if name.strip()]
    socket = await open_socket(request, request.path, front.settings)
    try:
        first = await socket.receive()
        if first.type in (WSMsgType.TEXT, WSMsgType.BINARY):
            replica = await _choose(request, front, first)
            with replica.use():
                await _join(request, front, replica, socket, protocols, first)
    except ApiError as error:  # the last replica has gone meanwhile
        log.warning("socket_refused", reason=error.message)
        await socket.close(code=WSCloseCode.TRY_AGAIN_LATER, message=_NO_ROOM)
    finally:
        request.app[OPEN_SOCKETS].discard(socket)
    return socket


async def _choose(request: web.Request, front: Front, first: aiohttp.WSMessage) -> Replica:
    """
    Raises:
        ApiError: 503, no replica takes requests.
    """
    found = None
    fields = _fields(first)
    if fields:
        headers, key = request_headers(request), presented_key(request.headers)
        if key is not None:  # it may have been shown as a subprotocol, which a plain request has not
            headers["Authorization"] = f"Bearer {key}"
        asked = Asked("GET", request.path, headers, fields=deciding_fields(fields))
        stream = fields.get("stream")
        if isinstance(stream, str) and _STREAM_ID.fullmatch(stream):
            found = await find_owner(front, f"stream {stream}", f"/v1/streams/{stream}", asked)
        else:
            found = await place_of_history(front, asked)
    return found or front.replicas.choose()


def _fields(message: aiohttp.WSMessage) -> dict[str, Any]:
    """Of a message that is a JSON object; empty where it is none, or too long to be read here."""
    if message.type is not WSMsgType.TEXT or len(message.data) > MAX_READ_CHARS:
        return {}
    try:
        fields = orjson.loads(message.data)
    except (orjson.JSONDecodeError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


async def _join(
    request: web.Request, front: Front, replica: Replica, socket: web.WebSocketResponse, protocols: list[str],
    first: aiohttp.WSMessage,
) -> None:  # fmt: skip
    note(replica=replica.name)
    headers, interval = request_headers(request), front.settings.ping_interval
    try:
        async with replica.open_socket(request.path_qs, headers, protocols, interval, MAX_EVENT) as inner:
            inward, outward = (
                asyncio.create_task(_carry(socket, inner, first)),
                asyncio.create_task(_carry(inner, socket)),
            )
            try:
                await asyncio.wait((inward, outward), return_when=asyncio.FIRST_COMPLETED)
            finally:
                inward.cancel()
                outward.cancel()
                _, was_sense = await asyncio.gather(inward, outward, return_exceptions=True)
            if not socket.closed:  # the replica has closed it, has sent what is no message, or is no more
                is_lost = inner.close_code in _BROKEN_OFF or was_sense is False
                code = WSCloseCode.SERVICE_RESTART if is_lost else inner.close_code
                await socket.close(code=int(code or WSCloseCode.OK), message=_LOST if is_lost else b"")
    except (aiohttp.ClientError, OSError) as error:
        log.warning("replica_lost", replica=replica.name, reason=str(error) or "it is silent")
        await socket.close(code=WSCloseCode.TRY_AGAIN_LATER, message=_NO_ROOM)


async def _carry(sender: Socket, receiver: Socket, first: aiohttp.WSMessage | None = None) -> bool:
    """Passes messages on, beginning with `first`. Waits while the receiver is slow, and with it whoever sends to it.

    Returns:
        Whether all that the sender has sent were messages, and none too long.
    """
    if first is not None:
        await _pass(first, receiver)
    async for message in sender:
        if message.type is WSMsgType.ERROR:
            return False
        await _pass(message, receiver)
    return True


async def _pass(message: Any, receiver: Socket) -> None:
    if message.type is WSMsgType.TEXT:
        await receiver.send_str(message.data)
    elif message.type is WSMsgType.BINARY:
        await receiver.send_bytes(message.data)
