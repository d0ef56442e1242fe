"""Failover of resumable streams: one whose replica dies is continued by another one, on the same connection.

A replica computes such a stream from its request alone: the seed that the client has not given follows from the id,
which the router gives. So another replica makes the same events, of which it sends those after the client's last one.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Collection
from contextlib import ExitStack, asynccontextmanager

import aiohttp
from aiohttp import web

from server.http import ollama
from server.http.entry.guard import TENANT
from server.http.streams.resuming import after_of
from server.http.streams.router_headers import AFTER_HEADER, NOT_HELD, STREAM_HEADER
from server.http.transport.json_body import json_response
from server.protocol.errors import ApiError
from server.router.forwarding import MAX_LOSSES, NOT_FOUND, forward, forward_to, log_lost, lost_error, pass_on
from server.router.proxy_response import EventReader, ProxyResponse, framing_of, is_event_stream, request_headers
from server.router.records.routed_streams import RoutedStream
from server.router.replica import Replica, ReplicaLost
from server.router.router import ROUTER, Router, draining_error, without_body
from server.startup.logs import log, note
from server.streams.stream_registry import ID_BYTES

PATIENCE_S = 60.0  # for which a stream waits until another replica takes it
RETRY_S = 0.5
# A stream that has run for so long at a replica is not what killed it, so that it outlives the restarts of a fleet.
STEADY_S = 10.0
_BUSY = (429, 503)


async def forward_generation(request: web.Request) -> web.StreamResponse:
    """POST of a generating route. A resumable stream gets failover."""
    router = request.app[ROUTER]
    router.check_accepting()
    with ExitStack() as reading:
        proxied = await router.read(request, reading)
        # Ollama's requests are streamed where they do not say.
        is_streamed = proxied.fields.get("stream", request.path in ollama.GENERATING) is True
        is_resumable = is_streamed and proxied.fields.get("resumable") is True
        if is_resumable and router.settings.front_key is not None:
            stream = RoutedStream(
                secrets.token_hex(ID_BYTES), request[TENANT].owner, request.path, proxied.headers, proxied.body or b"",
                proxied.blocks,
            )  # fmt: skip
            if router.streams.add(stream):
                return await StreamFailover(request, router, stream).run()
        return await forward(request, router, proxied)


async def resume_stream(request: web.Request) -> web.StreamResponse:
    """GET /v1/streams/{id}: the events after those that the client has."""
    router, stream_id = request.app[ROUTER], request.match_info["id"]
    stream = router.streams.get(stream_id, request[TENANT].owner)
    if stream is None:  # it was begun on a WebSocket, or before this router was started
        return await forward_to(request, router, without_body(request), router.replicas.usable, f"stream {stream_id}")
    return await StreamFailover(request, router, stream, after_of(request, stream_id), is_resumed=True).run()


async def stop_stream(request: web.Request) -> web.StreamResponse:
    """DELETE /v1/streams/{id}, whether or not the replica of the stream still lives."""
    router, stream_id = request.app[ROUTER], request.match_info["id"]
    proxied = without_body(request)
    stream = router.streams.get(stream_id, request[TENANT].owner)
    if stream is None:
        return await forward_to(request, router, proxied, router.replicas.usable, f"stream {stream_id}")
    stream.is_stopped = True
    router.streams.remove(stream)
    replica = None if stream.replica is None else router.replicas.get(stream.replica)
    if replica is not None:
        try:
            async with replica.send(proxied) as answer:
                if answer.status != NOT_FOUND:  # else the replica was restarted, without the stream
                    return await pass_on(request, router, replica, answer)
        except ReplicaLost as lost:
            log_lost(replica, lost)
    return json_response({"id": stream_id, "object": "stream.deleted", "deleted": True})


class StreamFailover:
    """Reads a stream for one client, from as many replicas as it takes."""

    def __init__(
        self, request: web.Request, router: Router, stream: RoutedStream, after: str | None = None, *,
        is_resumed: bool = False,
    ) -> None:  # fmt: skip
        """`after` is the position of the client's last event; if `is_resumed`, a replica should have the stream."""
        self._request = request
        self._router = router
        self._stream = stream
        self._after = after
        self._is_resumed = is_resumed
        self._busy_since: float | None = None  # since when no replica has had room, on the loop's clock
        self._framing = framing_of(stream.path)
        self._id_field = b"%b%b:" % (self._framing.id_before, stream.id.encode())

    async def run(self) -> web.StreamResponse:
        router, stream = self._router, self._stream
        tried: set[Replica] = set()
        num_losses, clock = 0, asyncio.get_running_loop().time
        with router.streams.reading(stream):
            async with ProxyResponse(self._request, router.settings, ping=self._framing.ping) as response:
                while True:
                    began, after = clock(), self._after
                    try:
                        finished = await self._try_replica(response, tried)
                        if finished is not None:
                            return finished
                    except ReplicaLost as lost:
                        if self._after != after and clock() - began > STEADY_S:
                            num_losses = 0
                        num_losses += lost.was_sent
                        log.warning("replica_lost", reason=str(lost), stream=stream.id)
                        if router.is_draining:
                            return await self._give_up(response, draining_error())
                        if num_losses > MAX_LOSSES or stream.is_stopped:
                            return await self._give_up(response, lost_error())
                    except ApiError as error:
                        return await self._give_up(response, error)
                    has_another = await router.replicas.wait_usable(PATIENCE_S if response.is_open else 0)
                    if not has_another or stream.is_stopped:  # its client may have stopped it meanwhile
                        return await self._give_up(response, lost_error())

    async def _try_replica(self, response: ProxyResponse, tried: set[Replica]) -> web.StreamResponse | None:
        """Passes on what follows the client's position; None where another replica should be tried."""
        router, stream = self._router, self._stream
        async with self._request_stream(tried) as (replica, answer):
            if answer.status != 200 or not is_event_stream(answer):
                return await self._pass_refusal(response, tried, replica, answer)
            note(replica=replica.name)
            self._busy_since = None
            is_resumable = answer.headers.get(STREAM_HEADER) != NOT_HELD
            if not is_resumable:
                router.streams.remove(stream)
            if response.is_open:
                router.num_moved += 1
                log.info("stream_moved", replica=replica.name, stream=stream.id)
            else:
                await response.open(answer, replica.name)
            stream.replica, self._is_resumed = replica.name, False
            try:
                await self._pass_events(response, replica, answer)
            except ReplicaLost as lost:
                tried.add(replica)
                if not is_resumable:
                    raise lost_error() from lost
                raise
            return await response.end()

    async def _pass_refusal(
        self, response: ProxyResponse, tried: set[Replica], replica: Replica, answer: aiohttp.ClientResponse
    ) -> web.StreamResponse | None:
        """Passes on an answer that is not the stream; None where another replica should be tried."""
        router, stream = self._router, self._stream
        if self._is_resumed and answer.status == NOT_FOUND:  # the replica was restarted meanwhile
            self._is_resumed, stream.replica = False, None
            return None
        if answer.status in _BUSY and (response.is_open or answer.status == 503) and replica not in tried:
            tried.add(replica)
            return None
        if answer.status in _BUSY and response.is_open:
            now = asyncio.get_running_loop().time()
            self._busy_since = now if self._busy_since is None else self._busy_since
            if now - self._busy_since > PATIENCE_S:
                raise lost_error()
            await asyncio.sleep(RETRY_S)
            return None
        if response.is_open:
            raise lost_error()
        if not self._is_resumed:
            router.streams.remove(stream)
        return await pass_on(self._request, router, replica, answer)

    @asynccontextmanager
    async def _request_stream(
        self, tried: Collection[Replica]
    ) -> AsyncIterator[tuple[Replica, aiohttp.ClientResponse]]:
        """Resumes the stream at the replica that has it, or requests it anew from another one."""
        router, stream = self._router, self._stream
        headers = {**stream.headers, **router.stream_headers(), STREAM_HEADER: stream.id}
        if self._after is not None:
            headers[AFTER_HEADER] = self._after
        known = None if stream.replica is None else router.replicas.get(stream.replica)
        if self._is_resumed and known is not None and known not in tried:
            headers |= request_headers(self._request) | router.stream_headers()
            with known.track():
                try:
                    async with known.request("GET", self._request.path_qs, headers=headers) as answer:
                        yield known, answer
                        return
                except ReplicaLost:
                    self._is_resumed = False
                    raise
        replica = router.replicas.choose(stream.blocks, tried)
        with replica.track(stream.blocks):
            async with replica.request("POST", stream.path, headers=headers, body=stream.body) as answer:
                yield replica, answer

    async def _pass_events(self, response: ProxyResponse, replica: Replica, answer: aiohttp.ClientResponse) -> None:
        """Passes whole events on and notes the position of the last one."""
        reader, id_field, id_after = EventReader(answer, replica.name), self._id_field, self._framing.id_after
        event_end = reader.event_end
        while (data := await reader.read()).endswith(event_end):
            await response.write(data)
            at = data.rfind(event_end + id_field)
            start = at + len(event_end) if at >= 0 else 0 if data.startswith(id_field) else -1
            if start >= 0:
                start += len(id_field)
                self._after = data[start : data.index(id_after, start)].decode("ascii", "replace")

    async def _give_up(self, response: ProxyResponse, error: ApiError) -> web.StreamResponse:
        """Ends the stream with an error event; raises the error where the client has no status yet."""
        if not response.is_open:
            raise error
        await response.write_error(self._stream.path, error)
        return await response.end()
