"""Handlers that forward a request to a replica: to the best one, to the owner of an id, or to all."""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

import aiohttp
from aiohttp import web

from server.http.transport.json_body import send_whole
from server.protocol.errors import ApiError, unavailable
from server.router.proxy_response import REPLICA_HEADER, EventReader, ProxyResponse, answer_headers, is_event_stream
from server.router.replica import ProxyRequest, Replica, ReplicaLost, read_piece, read_whole
from server.router.replicas import no_replica
from server.router.router import ROUTER, Router
from server.startup.logs import log, note

MAX_LOSSES = 2  # replicas that may die under one request: it may be what kills them
MAX_WHOLE = 1 << 16  # bytes of an answer that is read whole, so that it can be sent again where its replica dies
UNAVAILABLE, NOT_FOUND = 503, 404
FIRST_REFUSAL = 400  # from this status on, an answer does not show that the replica owns something


class WholeAnswer(NamedTuple):
    """An answer that was read to its end."""

    replica: Replica
    answer: aiohttp.ClientResponse
    body: bytes

    @property
    def status(self) -> int:
        return self.answer.status


async def forward_to_best(request: web.Request) -> web.StreamResponse:
    """To the replica that the policy chooses, and to the next one where that one fails before it has answered."""
    router = request.app[ROUTER]
    router.check_accepting()
    with ExitStack() as reading:
        return await forward(request, router, await router.read(request, reading))


async def forward(request: web.Request, router: Router, proxied: ProxyRequest) -> web.StreamResponse:
    """As `forward_to_best`; raises an `ApiError` with 503 where no replica has answered."""
    tried: set[Replica] = set()
    num_losses = 0
    while True:
        replica = router.replicas.choose(proxied.blocks, tried)
        try:
            with replica.track(proxied.blocks):
                async with replica.send(proxied) as answer:
                    if answer.status != UNAVAILABLE or replica in tried:
                        return await pass_on(request, router, replica, answer)
        except ReplicaLost as lost:
            num_losses += lost.was_sent
            log_lost(replica, lost)
            if num_losses > MAX_LOSSES:
                raise lost_error() from lost
        tried.add(replica)


async def forward_to(
    request: web.Request, router: Router, proxied: ProxyRequest, replicas: Sequence[Replica], key: str | None = None
) -> web.StreamResponse:
    """The answer of the first of these replicas that does not answer 404; the last 404 if all do.

    `key` is what is requested: its known owner comes first, and a new one is noted. Raises ApiError (503).
    """
    if not replicas:
        raise no_replica()
    owner = None if key is None else router.owners.get(key)
    in_order = sorted(replicas, key=lambda replica: replica.name != owner)
    for replica in in_order:
        try:
            async with replica.send(proxied) as answer:
                if answer.status == NOT_FOUND and replica is not in_order[-1]:
                    continue
                if key is not None and answer.status < FIRST_REFUSAL:
                    router.owners[key] = replica.name
                with replica.track():
                    return await pass_on(request, router, replica, answer)
        except ReplicaLost as lost:
            log_lost(replica, lost)
            if lost.was_sent or replica is in_order[-1]:
                raise lost_error() from lost
    raise no_replica()


async def forward_to_all(request: web.Request) -> web.StreamResponse:
    """To every replica, for commands of an operator. The answer is the worst of theirs, a 404 only where all are."""
    router = request.app[ROUTER]
    with ExitStack() as reading:
        proxied = await router.read(request, reading)

        usable = router.replicas.usable
        if not usable:
            raise no_replica()
        try:
            answers = await asyncio.gather(*(ask(replica, proxied) for replica in usable))
        except ReplicaLost as lost:
            raise lost_error() from lost
        return await send_answer(request, router, worst_of(answers))


def worst_of(answers: Sequence[WholeAnswer]) -> WholeAnswer:
    """The answer to a command that every replica has got: a 404 only where all are."""
    return max(answers, key=lambda answer: (answer.status != NOT_FOUND, answer.status))


async def ask(replica: Replica, proxied: ProxyRequest, seconds: float | None = None) -> WholeAnswer:
    """A whole answer of a replica; raises ReplicaLost, also where none comes within `seconds`."""
    try:
        async with asyncio.timeout(seconds), replica.send(proxied) as answer:
            return WholeAnswer(replica, answer, await read_whole(answer, replica.name))
    except TimeoutError as error:
        raise ReplicaLost(f"{replica.name} gave no answer within {seconds:g} s", was_sent=True) from error


async def pass_on(
    request: web.Request, router: Router, replica: Replica, answer: aiohttp.ClientResponse
) -> web.StreamResponse:
    """Passes an answer on. A stream that breaks off ends with one error event; any other answer is cut. Raises
    `ReplicaLost` only before anything was sent to the client.
    """
    note(replica=replica.name)
    is_stream = is_event_stream(answer)
    length = None if is_stream or request.method == "HEAD" else answer.content_length
    if length is not None and length <= MAX_WHOLE:
        whole = WholeAnswer(replica, answer, await read_whole(answer, replica.name))
        return await send_answer(request, router, whole)
    async with ProxyResponse(request, router.settings) as response:
        await response.open(answer, replica.name)
        try:
            if is_stream:
                reader = EventReader(answer, replica.name)
                while data := await reader.read():
                    await response.write(data)
            else:
                while data := await read_piece(answer, replica.name):
                    await response.write(data)
        except ReplicaLost as lost:
            log_lost(replica, lost)
            if is_stream:
                await response.write_error(request.path, lost_error())
            else:
                response.cut()
        return await response.end()


def lost_error() -> ApiError:
    """503: the replica that had the request is gone."""
    return unavailable("the server that worked on this request was lost; send it again", "replica_lost")


def log_lost(replica: Replica, lost: ReplicaLost) -> None:
    log.warning("replica_lost", replica=replica.name, reason=str(lost))


async def send_answer(request: web.Request, router: Router, whole: WholeAnswer) -> web.StreamResponse:
    """Passes on an answer that was read whole."""
    response = web.Response(body=whole.body, status=whole.status, reason=whole.answer.reason)
    response.headers.popall("Content-Type", None)
    response.headers.extend(answer_headers(whole.answer))
    response.headers[REPLICA_HEADER] = whole.replica.name
    return await send_whole(request, response, router.settings)
