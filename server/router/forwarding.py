"""Requests that any replica may answer, and those that one of them alone can."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack

import aiohttp
from aiohttp import web

from server.http.transport.json_body import send_whole
from server.protocol.errors import ApiError, unavailable
from server.router.error_events import error_event
from server.router.front import FRONT, Asked, Front
from server.router.proxy_response import (
    MAX_WHOLE,
    REPLICA_HEADER,
    EventReader,
    ProxyResponse,
    answer_headers,
    is_event_stream,
    read_piece,
    read_whole,
)
from server.router.replica import Replica, ReplicaLost
from server.router.replicas import no_replica
from server.startup.logs import log, note

MAX_LOSSES = 2  # replicas that may die under one request: it may be what kills them
UNAVAILABLE, NOT_FOUND = 503, 404
FIRST_REFUSAL = 400  # from this status on, an answer says nothing of where a thing is


async def forward_to_best(request: web.Request) -> web.StreamResponse:
    """To the replica that knows the prompt's beginning, or has the least to do; to the next one where that one fails
    before it has answered.
    """
    front = request.app[FRONT]
    front.check_accepting()
    with ExitStack() as preparing:
        asked = await front.read(request, preparing)
        return await forward(request, front, asked)


async def forward(request: web.Request, front: Front, asked: Asked) -> web.StreamResponse:
    """The answer of one of the replicas.

    Raises:
        ApiError: 503, no replica has answered.
    """
    tried: set[Replica] = set()
    num_losses = 0
    while True:
        replica = front.replicas.choose(asked.blocks, tried)
        try:
            with replica.use(asked.blocks):
                async with replica.ask(asked.method, asked.path, headers=asked.headers, body=asked.body) as answer:
                    if answer.status != UNAVAILABLE or replica in tried:
                        return await pass_on(request, front, replica, answer)
        except ReplicaLost as lost:
            num_losses += lost.was_asked
            log.warning("replica_lost", replica=replica.name, reason=str(lost))
            if num_losses > MAX_LOSSES:
                raise lost_error() from lost
        tried.add(replica)


async def forward_to(
    request: web.Request, front: Front, asked: Asked, replicas: Sequence[Replica], thing: str | None = None
) -> web.StreamResponse:
    """The answer of the first of these replicas that does not answer 404; the last 404 if all do.

    Args:
        thing: the id of what is asked for; who has it is asked first the next time.

    Raises:
        ApiError: 503, none of them has answered, or the one that has it was lost.
    """
    known = None if thing is None else front.places.get(thing)
    in_order = sorted(replicas, key=lambda replica: replica.name != known)
    if not in_order:
        raise no_replica()
    for replica in in_order:
        try:
            async with replica.ask(asked.method, asked.path, headers=asked.headers, body=asked.body) as answer:
                if answer.status == NOT_FOUND and replica is not in_order[-1]:
                    continue
                if thing is not None and answer.status < FIRST_REFUSAL:
                    front.places.put(thing, replica.name)
                with replica.use():
                    return await pass_on(request, front, replica, answer)
        except ReplicaLost as lost:
            log.warning("replica_lost", replica=replica.name, reason=str(lost))
            if lost.was_asked or replica is in_order[-1]:
                raise lost_error() from lost
    raise no_replica()


async def forward_to_all(request: web.Request) -> web.StreamResponse:
    """To every replica, for what an operator asks of the whole. The answer is the worst of theirs; a 404 says only that
    another one has what is asked for.
    """
    front = request.app[FRONT]
    with ExitStack() as preparing:
        asked = await front.read(request, preparing)

        async def ask(replica: Replica) -> tuple[Replica, aiohttp.ClientResponse, bytes]:
            async with replica.ask(asked.method, asked.path, headers=asked.headers, body=asked.body) as answer:
                return replica, answer, await read_whole(answer, replica.name)

        usable = front.replicas.usable
        if not usable:
            raise no_replica()
        try:
            answers = await asyncio.gather(*(ask(replica) for replica in usable))
        except ReplicaLost as lost:
            raise lost_error() from lost
        replica, answer, body = max(answers, key=lambda told: (told[1].status != NOT_FOUND, told[1].status))
        return await _send(request, front, replica, answer, body)


async def pass_on(
    request: web.Request, front: Front, replica: Replica, answer: aiohttp.ClientResponse
) -> web.StreamResponse:
    """Passes an answer on to the client. A stream that breaks off gets one error event; any other answer is cut.

    Raises:
        ReplicaLost: before anything was sent.
    """
    note(replica=replica.name)
    is_stream = is_event_stream(answer)
    length = None if is_stream or request.method == "HEAD" else answer.content_length
    if length is not None and length <= MAX_WHOLE:
        return await _send(request, front, replica, answer, await read_whole(answer, replica.name))
    async with ProxyResponse(request, front.settings) as passage:
        await passage.open(answer, replica.name)
        try:
            if is_stream:
                await pass_events(passage, replica, answer)
            else:
                while piece := await read_piece(answer, replica.name):
                    await passage.write(piece)
        except ReplicaLost as lost:
            log.warning("replica_lost", replica=replica.name, reason=str(lost))
            if is_stream:
                await passage.write(error_event(request, request.path, lost_error(), passage.last))
            else:
                passage.cut()
        await passage.end()
        assert passage.response is not None
        return passage.response


async def pass_events(passage: ProxyResponse, replica: Replica, answer: aiohttp.ClientResponse) -> None:
    """Passes whole events on, so that an error event can follow wherever the replica breaks off.

    Raises:
        ReplicaLost: it has broken off.
    """
    reader = EventReader(answer, replica.name)
    while data := await reader.read():
        await passage.write(data)


def lost_error() -> ApiError:
    """503: the replica that had the request is no more."""
    return unavailable("the server that worked on this request was lost; send it again", "replica_lost")


async def _send(
    request: web.Request, front: Front, replica: Replica, answer: aiohttp.ClientResponse, body: bytes
) -> web.StreamResponse:
    response = web.Response(body=body, status=answer.status, reason=answer.reason)
    response.headers.popall("Content-Type", None)
    response.headers.extend(answer_headers(answer))
    response.headers[REPLICA_HEADER] = replica.name
    return await send_whole(request, response, front.settings)
