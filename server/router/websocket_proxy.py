"""The WebSocket proxy: each client socket is joined with one replica's, and messages pass in both directions.

The first message decides which replica that is: the protocols have no greeting, and a client that resumes a stream or
continues a stored response says so in its first message.
"""

import asyncio
import re
from typing import Any, TypeAlias

import aiohttp
import orjson
from aiohttp import WSCloseCode, WSMsgType, web

from server.admission.keyring import presented_key
from server.http.websocket import OPEN_SOCKETS, open_socket
from server.protocol.errors import ApiError
from server.router.proxy_response import MAX_EVENT, request_headers
from server.router.replica import ProxyRequest, Replica
from server.router.replicas import no_replica
from server.router.router import ROUTER, Router, routing_fields
from server.router.sticky_routes import find_owner, owner_of_history
from server.startup.logs import log, note

Socket: TypeAlias = web.WebSocketResponse | aiohttp.ClientWebSocketResponse[bool]

MAX_PARSED_CHARS = 64 << 10  # of a first message; decoding as many takes three milliseconds at worst
_STREAM_ID = re.compile(r"[0-9a-f]{32}")
_LOST = b"the server that worked on this socket was lost"
_NO_REPLICA = b"no server takes this socket at the moment"


async def proxy_websocket(request: web.Request) -> web.WebSocketResponse:
    """GET of a WebSocket route: joins the client with the replica that has what its first message names, or else with
    the one that the policy chooses.
    """
    router = request.app[ROUTER]
    router.check_accepting()
    if not router.replicas.usable:
        raise no_replica()
    protocols = [name.strip() for name in request.headers.get("Sec-WebSocket-Protocol", "").split(",") if name.strip()]
    socket = await open_socket(request, request.path, router.settings)
    try:
        first = await socket.receive()
        if first.type in (WSMsgType.TEXT, WSMsgType.BINARY):
            replica = await _choose(request, router, first)
            with replica.track():
                await _join(request, router, replica, socket, protocols, first)
    except ApiError as error:  # the last replica has gone meanwhile
        log.warning("socket_refused", reason=error.message)
        await socket.close(code=WSCloseCode.TRY_AGAIN_LATER, message=_NO_REPLICA)
    finally:
        request.app[OPEN_SOCKETS].discard(socket)
    return socket


async def _choose(request: web.Request, router: Router, first: aiohttp.WSMessage) -> Replica:
    owner = None
    fields = _parse(first)
    if fields:
        headers, key = request_headers(request), presented_key(request.headers)
        if key is not None:  # a client may have sent it as a subprotocol, which a plain request does not have
            headers["Authorization"] = f"Bearer {key}"
        proxied = ProxyRequest("GET", request.path, headers, fields=routing_fields(fields))
        stream_id = fields.get("stream")
        if isinstance(stream_id, str) and _STREAM_ID.fullmatch(stream_id):
            owner = await find_owner(router, f"stream {stream_id}", f"/v1/streams/{stream_id}", proxied)
        else:
            owner = await owner_of_history(router, proxied)
    return owner or router.replicas.choose()


def _parse(message: aiohttp.WSMessage) -> dict[str, Any]:
    """The fields of a message, if it is a JSON object and not too long."""
    if message.type is not WSMsgType.TEXT or len(message.data) > MAX_PARSED_CHARS:
        return {}
    try:
        fields = orjson.loads(message.data)
    except (orjson.JSONDecodeError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


async def _join(
    request: web.Request, router: Router, replica: Replica, socket: web.WebSocketResponse, protocols: list[str],
    first: aiohttp.WSMessage,
) -> None:  # fmt: skip
    note(replica=replica.name)
    headers, interval = request_headers(request), router.settings.ping_interval
    try:
        async with replica.connect_websocket(request.path_qs, headers, protocols, interval, MAX_EVENT) as upstream:
            tasks = (
                asyncio.create_task(_pump(socket, upstream, first)),
                asyncio.create_task(_pump(upstream, socket)),
            )
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                _, was_valid = await asyncio.gather(*tasks, return_exceptions=True)
            if not socket.closed:  # the replica has closed it, has sent an invalid frame, or is gone
                is_lost = upstream.close_code in (None, WSCloseCode.ABNORMAL_CLOSURE) or was_valid is False
                code = WSCloseCode.SERVICE_RESTART if is_lost else upstream.close_code
                await socket.close(code=int(code or WSCloseCode.OK), message=_LOST if is_lost else b"")
    except (aiohttp.ClientError, OSError) as error:
        log.warning("replica_lost", replica=replica.name, reason=str(error) or "it is silent")
        await socket.close(code=WSCloseCode.TRY_AGAIN_LATER, message=_NO_REPLICA)


async def _pump(sender: Socket, receiver: Socket, first: aiohttp.WSMessage | None = None) -> bool:
    """Passes messages on, beginning with `first`. While the receiver is slow, nothing is read from the sender. Returns
    whether all that the sender has sent were valid messages, and none too long.
    """
    if first is not None:
        await _send(first, receiver)
    async for message in sender:
        if message.type is WSMsgType.ERROR:
            return False
        await _send(message, receiver)
    return True


async def _send(message: Any, receiver: Socket) -> None:
    if message.type is WSMsgType.TEXT:
        await receiver.send_str(message.data)
    elif message.type is WSMsgType.BINARY:
        await receiver.send_bytes(message.data)
