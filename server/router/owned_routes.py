"""Routes of what one replica has: requests, responses and conversations by their ids, and what one engine does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack

from aiohttp import web

from server.http.responses.routes import CONVERSATIONS, RESPONSES
from server.protocol.errors import ApiError, shorten
from server.router.forwarding import FIRST_REFUSAL, NOT_FOUND, forward, forward_to
from server.router.front import FRONT, Asked, Front
from server.router.replica import Replica, ReplicaLost

# What names a response or a conversation. Whatever else a client sends as an id is for a replica to refuse.
_ID = re.compile(r"[0-9A-Za-z_]{1,256}")


async def forward_to_owner(request: web.Request) -> web.StreamResponse:
    """To the replica that knows the thing in the address, found by asking them all the first time."""
    front = request.app[FRONT]
    with ExitStack() as preparing:
        asked = await front.read(request, preparing)
        return await forward_to(request, front, asked, front.replicas.usable, request.match_info["id"])


async def forward_response(request: web.Request) -> web.StreamResponse:
    """POST /v1/responses: where the response or the conversation is that it follows, or else to the best replica."""
    front = request.app[FRONT]
    front.check_accepting()
    with ExitStack() as preparing:
        asked = await front.read(request, preparing)
        place = await place_of_history(front, asked)
        if place is None:
            return await forward(request, front, asked)
        with place.use(asked.blocks):
            return await forward_to(request, front, asked, [place])


async def forward_to_named(request: web.Request) -> web.StreamResponse:
    """To the replica that `?replica=NAME` names, or to the first: each has an answer of its own."""
    front, name = request.app[FRONT], request.query.get("replica")
    usable = sorted(front.replicas.usable, key=lambda replica: replica.name)
    if name is not None:
        usable = [replica for replica in usable if replica.name == name]
        if not usable:
            names = ", ".join(sorted(replica.name for replica in front.replicas))
            raise ApiError(
                f"replica is {shorten(name)}; those of this front are {names}", param="replica", code="invalid_value"
            )
    with ExitStack() as preparing:
        asked = await front.read(request, preparing)
        return await forward_to(request, front, asked, usable[:1])


async def place_of_history(front: Front, asked: Asked) -> Replica | None:
    """The replica that has what a request for a response follows; None where it follows nothing, or nobody has it."""
    for name, path in (("previous_response_id", RESPONSES), ("conversation", CONVERSATIONS)):
        thing = asked.fields.get(name)
        if isinstance(thing, str) and _ID.fullmatch(thing):
            return await find_owner(front, thing, f"{path}/{thing}", asked)
    return None


async def find_owner(front: Front, thing: str, path: str, asked: Asked) -> Replica | None:
    """The replica that knows a thing; None where none does.

    Args:
        thing: its name among the places of the front.
        path: where it is asked for.
        asked: the request of the client, whose headers show who asks.
    """
    known = front.places.get(thing)
    usable: Sequence[Replica] = sorted(front.replicas.usable, key=lambda replica: replica.name != known)
    for replica in usable:
        try:
            async with replica.ask("GET", path, headers=asked.headers) as answer:
                if answer.status < FIRST_REFUSAL:
                    front.places.put(thing, replica.name)
                if answer.status != NOT_FOUND:
                    return replica
        except ReplicaLost:
            continue
    return None
