"""Resumable streams through the front: one whose replica dies goes on at another one, on the same connection.

A replica computes such a stream from its request alone: the seed that the client has not given follows from the id,
which the front gives. So another replica makes the same events, of which the client lacks those behind its last place.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Collection
from contextlib import ExitStack, asynccontextmanager

import aiohttp
from aiohttp import web

from server.http.entry.guard import TENANT
from server.http.streams.resuming import after_of
from server.http.streams.router_headers import AFTER_HEADER, NOT_HELD, STREAM_HEADER
from server.http.transport.json_body import json_response
from server.protocol.errors import ApiError
from server.router.error_events import error_event
from server.router.followed_stream import FollowedStream
from server.router.forwarding import MAX_LOSSES, NOT_FOUND, forward, forward_to, lost_error, pass_on
from server.router.front import FRONT, Asked, Front, draining_error
from server.router.proxy_response import BETWEEN_EVENTS, EventReader, ProxyResponse, is_event_stream, request_headers
from server.router.replica import Replica, ReplicaLost
from server.startup.logs import log, note
from server.streams.stream_registry import ID_BYTES

PATIENCE_S = 60.0  # for which a stream waits until another replica takes it
RETRY_S = 0.5
# A stream that has gone on for so long at a replica is not what killed it, so that it outlives the restarts of a fleet.
STEADY_S = 10.0
_BUSY = (429, 503)


async def forward_generation(request: web.Request) -> web.StreamResponse:
    """A generating route whose streams can be resumed."""
    front = request.app[FRONT]
    front.check_accepting()
    with ExitStack() as preparing:
        asked = await front.read(request, preparing)
        fields = asked.fields
        if fields.get("stream") is True and fields.get("resumable") is True and front.settings.front_key is not None:
            stream = FollowedStream(
                secrets.token_hex(ID_BYTES), request[TENANT].owner, request.path, asked.headers, asked.body or b"",
                asked.blocks,
            )  # fmt: skip
            if front.streams.add(stream):
                return await _Following(request, front, stream).run()
        return await forward(request, front, asked)


async def resume(request: web.Request) -> web.StreamResponse:
    """GET /v1/streams/{id}: what follows the events that the client has."""
    front, stream_id = request.app[FRONT], request.match_info["id"]
    stream = front.streams.get(stream_id, request[TENANT].owner)
    if stream is None:  # it was begun on a WebSocket, or before this front was started
        asked = Asked(request.method, request.path_qs, request_headers(request))
        return await forward_to(request, front, asked, front.replicas.usable, f"stream {stream_id}")
    return await _Following(request, front, stream, after_of(request, stream_id), is_back=True).run()


async def stop(request: web.Request) -> web.StreamResponse:
    """DELETE /v1/streams/{id}, whether or not the replica that had the stream still lives."""
    front, stream_id = request.app[FRONT], request.match_info["id"]
    asked = Asked(request.method, request.path_qs, request_headers(request))
    stream = front.streams.get(stream_id, request[TENANT].owner)
    if stream is None:
        return await forward_to(request, front, asked, front.replicas.usable, f"stream {stream_id}")
    stream.is_stopped = True
    front.streams.forget(stream)
    replica = None if stream.replica is None else front.replicas.get(stream.replica)
    if replica is not None:
        try:
            async with replica.ask(asked.method, asked.path, headers=asked.headers) as answer:
                if answer.status != NOT_FOUND:  # else the replica was started anew, without the stream
                    return await pass_on(request, front, replica, answer)
        except ReplicaLost as lost:
            log.warning("replica_lost", replica=replica.name, reason=str(lost))
    return json_response({"id": stream_id, "object": "stream.deleted", "deleted": True})


class _Following:
    """One client's reading of a stream, over as many replicas as it takes."""

    def __init__(
        self, request: web.Request, front: Front, stream: FollowedStream, after: str | None = None, *,
        is_back: bool = False,
    ) -> None:  # fmt: skip
        """Args:
        after: the place of the last event that the client has; None: it has none.
        is_back: the client has asked for the stream before, so a replica should have it.
        """
        self._request = request
        self._front = front
        self._stream = stream
        self._after = after
        self._is_back = is_back
        self._waits_since: float | None = None  # for a replica with room, on the loop's clock
        self._head = b"id: %b:" % stream.id.encode()

    async def run(self) -> web.StreamResponse:
        """Passes the stream on to its end."""
        front = self._front
        tried: set[Replica] = set()
        num_losses, clock = 0, asyncio.get_running_loop().time
        with front.streams.reading(self._stream):
            async with ProxyResponse(self._request, front.settings, ping=b": ping\n\n") as passage:
                while True:
                    began, after = clock(), self._after
                    try:
                        if await self._go_on(passage, tried):
                            assert passage.response is not None
                            return passage.response
                    except ReplicaLost as lost:
                        if self._after != after and clock() - began > STEADY_S:
                            num_losses = 0
                        num_losses += lost.was_asked
                        log.warning("replica_lost", reason=str(lost), stream=self._stream.id)
                        if front.is_draining:
                            return await self._give_up(passage, draining_error())
                        if num_losses > MAX_LOSSES or self._stream.is_stopped:
                            return await self._give_up(passage, lost_error())
                    except ApiError as error:
                        return await self._give_up(passage, error)
                    has_another = await front.replicas.wait_usable(PATIENCE_S if passage.is_open else 0)
                    if not has_another or self._stream.is_stopped:  # its client may have stopped it meanwhile
                        return await self._give_up(passage, lost_error())

    async def _go_on(self, passage: ProxyResponse, tried: set[Replica]) -> bool:
        """Passes on what follows the client's place; False where another replica should be asked.

        Raises:
            ReplicaLost, ApiError
        """
        front, stream = self._front, self._stream
        async with self._ask(tried) as (replica, answer):
            if answer.status != 200 or not is_event_stream(answer):
                if self._is_back and answer.status == 404:  # the replica was started anew meanwhile
                    self._is_back, stream.replica = False, None
                    return False
                if answer.status in _BUSY and (passage.is_open or answer.status == 503) and replica not in tried:
                    tried.add(replica)
                    return False
                if answer.status in _BUSY and passage.is_open:
                    now = asyncio.get_running_loop().time()
                    self._waits_since = now if self._waits_since is None else self._waits_since
                    if now - self._waits_since > PATIENCE_S:
                        raise lost_error()
                    await asyncio.sleep(RETRY_S)
                    return False
                if passage.is_open:
                    raise lost_error()
                if not self._is_back:
                    front.streams.forget(stream)
                passage.response = await pass_on(self._request, front, replica, answer)
                return True
            note(replica=replica.name)
            self._waits_since = None
            is_held = answer.headers.get(STREAM_HEADER) != NOT_HELD
            if not is_held:
                front.streams.forget(stream)
            if passage.is_open:
                front.num_moved += 1
                log.info("stream_moved", replica=replica.name, stream=stream.id)
            else:
                await passage.open(answer, replica.name)
            stream.replica, self._is_back = replica.name, False
            try:
                await self._pass(passage, replica, answer)
            except ReplicaLost as lost:
                tried.add(replica)
                if not is_held:
                    raise lost_error() from lost
                raise
            await passage.end()
            return True

    @asynccontextmanager
    async def _ask(self, tried: Collection[Replica]) -> AsyncIterator[tuple[Replica, aiohttp.ClientResponse]]:
        """The stream from where it is, or a request for it at another replica.

        Raises:
            ReplicaLost, ApiError
        """
        front, stream = self._front, self._stream
        headers = {**stream.headers, **front.front_headers(), STREAM_HEADER: stream.id}
        if self._after is not None:
            headers[AFTER_HEADER] = self._after
        known = None if stream.replica is None else front.replicas.get(stream.replica)
        if self._is_back and known is not None and known not in tried:
            headers |= request_headers(self._request) | front.front_headers()
            with known.use():
                try:
                    async with known.ask("GET", self._request.path_qs, headers=headers) as answer:
                        yield known, answer
                        return
                except ReplicaLost:
                    self._is_back = False
                    raise
        replica = front.replicas.choose(stream.blocks, tried)
        with replica.use(stream.blocks):
            async with replica.ask("POST", stream.path, headers=headers, body=stream.body) as answer:
                yield replica, answer

    async def _pass(self, passage: ProxyResponse, replica: Replica, answer: aiohttp.ClientResponse) -> None:
        """Passes whole events on and notes the place of the last one.

        Raises:
            ReplicaLost: the replica has broken off.
        """
        reader = EventReader(answer, replica.name)
        while (data := await reader.read()).endswith(BETWEEN_EVENTS):
            await passage.write(data)
            at = data.rfind(BETWEEN_EVENTS + self._head)
            start = at + len(BETWEEN_EVENTS) if at >= 0 else 0 if data.startswith(self._head) else -1
            if start >= 0:
                self._after = data[start + len(self._head) : data.index(b"\n", start)].decode("ascii", "replace")

    async def _give_up(self, passage: ProxyResponse, error: ApiError) -> web.StreamResponse:
        """Tells the client that the stream does not go on.

        Raises:
            ApiError: the client has no status yet.
        """
        if not passage.is_open:
            raise error
        await passage.write(error_event(self._request, self._stream.path, error, passage.last))
        await passage.end()
        assert passage.response is not None
        return passage.response
