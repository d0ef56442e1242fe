"""Handlers for what one replica alone holds: responses, conversations and requests by id, and figures of an engine."""

import re
from contextlib import ExitStack

from aiohttp import web

from server.http.batches.routes import FILES
from server.http.responses.routes import CONVERSATIONS, RESPONSES
from server.protocol.errors import ApiError, shorten
from server.router.forwarding import FIRST_REFUSAL, NOT_FOUND, forward, forward_to
from server.router.replica import ProxyRequest, Replica, ReplicaLost
from server.router.router import ROUTER, Router

# The id of a response, a conversation or a file. Whatever else a client sends as an id is for a replica to refuse.
_ID = re.compile(r"[0-9A-Za-z_-]{1,256}")
# Where what a routing field names is found; the first field that a request has decides.
_HISTORIES = (
    ("previous_response_id", RESPONSES), ("conversation", CONVERSATIONS), ("referenced_response", RESPONSES),
    ("input_file_id", FILES),
)  # fmt: skip


async def forward_to_owner(request: web.Request) -> web.StreamResponse:
    """To the replica that owns the id in the path, found by asking all of them the first time."""
    router = request.app[ROUTER]
    with ExitStack() as reading:
        proxied = await router.read(request, reading)
        return await forward_to(request, router, proxied, router.replicas.usable, request.match_info["id"])


async def forward_with_history(request: web.Request) -> web.StreamResponse:
    """A new response, conversation or batch: to the replica with what it continues or reads, or else to the best."""
    router = request.app[ROUTER]
    router.check_accepting()
    with ExitStack() as reading:
        proxied = await router.read(request, reading)
        owner = await owner_of_history(router, proxied)
        if owner is None:
            return await forward(request, router, proxied)
        with owner.track(proxied.blocks):
            return await forward_to(request, router, proxied, [owner])


async def forward_to_named(request: web.Request) -> web.StreamResponse:
    """To the replica that `?replica=NAME` names, or to the first."""
    router, name = request.app[ROUTER], request.query.get("replica")
    usable = sorted(router.replicas.usable, key=lambda replica: replica.name)
    if name is not None:
        usable = [replica for replica in usable if replica.name == name]
        if not usable:
            names = ", ".join(sorted(replica.name for replica in router.replicas))
            raise ApiError(
                f"replica is {shorten(name)}; those of this front are {names}", param="replica", code="invalid_value"
            )
    with ExitStack() as reading:
        return await forward_to(request, router, await router.read(request, reading), usable[:1])


async def owner_of_history(router: Router, proxied: ProxyRequest) -> Replica | None:
    """The replica with the stored response, conversation or file that a request continues or refers to, if it does."""
    for name, path in _HISTORIES:
        history_id = proxied.fields.get(name)
        if isinstance(history_id, str) and _ID.fullmatch(history_id):
            return await find_owner(router, history_id, f"{path}/{history_id}", proxied)
    return None


async def find_owner(router: Router, key: str, path: str, proxied: ProxyRequest) -> Replica | None:
    """The replica that does not answer 404 to GET `path`; None where all do. `key` is that of the router's owners."""
    known = router.owners.get(key)
    for replica in sorted(router.replicas.usable, key=lambda replica: replica.name != known):
        try:
            async with replica.request("GET", path, headers=proxied.headers) as answer:
                if answer.status < FIRST_REFUSAL:
                    router.owners[key] = replica.name
                if answer.status != NOT_FOUND:
                    return replica
        except ReplicaLost:
            continue
    return None
