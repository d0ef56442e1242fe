"""What keys have used at all replicas: the administrator's view, and the tokens that the front's own limits count."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, TypeAlias

import orjson
from aiohttp import web

from server.admission.keyring import KeyRing
from server.http.transport.json_body import json_response
from server.http.usage import COUNTS, accounts_of, reset, to_dict
from server.router.replica import HEALTH_S, Replica, ReplicaLost, read_whole
from server.router.router import ROUTER, Router, without_body

LOOK_S = 1.0  # between two looks at the tokens that replicas have counted
_TOKENS = re.compile(
    rb'^eagre_key_(prompt|generation)_tokens_total\{key="((?:[^"\\\n]|\\.)*)"\} ([0-9.e+]+)$', re.MULTILINE
)
_ESCAPE = re.compile(r"\\(.)")

Counts: TypeAlias = dict[tuple[bytes, bytes], int]  # tokens, by their kind and the name of a key


async def show_usage(request: web.Request) -> web.Response:
    """GET /admin/usage: requests as they came to the front, tokens of all replicas."""
    return await _answer(request)


async def reset_usage(request: web.Request) -> web.Response:
    """POST /admin/usage/reset: the front's counts and those of all replicas."""
    response = await _answer(request)
    reset(accounts_of(request))
    return response


async def _answer(request: web.Request) -> web.Response:
    router = request.app[ROUTER]
    proxied = without_body(request)

    async def ask(replica: Replica) -> Any:
        with suppress(ReplicaLost, TimeoutError, orjson.JSONDecodeError):
            async with asyncio.timeout(HEALTH_S), replica.send(proxied) as answer:
                body = orjson.loads(await read_whole(answer, replica.name))
                return body if answer.status == 200 else None
        return None

    body = to_dict(accounts_of(request))
    by_name = {entry["name"]: entry for entry in body["data"]}
    for found in await asyncio.gather(*(ask(replica) for replica in router.replicas.usable)):
        for entry in [] if found is None else found["data"]:
            own = by_name.get(entry["name"], {})
            for name in COUNTS:
                if name in own and name != "num_model_requests":  # they are counted where they enter
                    own[name] += entry[name]
    return json_response(body)


def watch_tokens(keys: KeyRing) -> Callable[[web.Application], AsyncIterator[None]]:
    """A cleanup context that charges the tokens of all replicas to the front's accounts, about once a second.

    Only replicas know the tokens of an answer. Each holds a key to its limit alone, so that the front adds them up.
    """

    async def context(app: web.Application) -> AsyncIterator[None]:
        watcher = asyncio.create_task(_watch(app[ROUTER], keys))
        yield
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)

    return context


async def _watch(router: Router, keys: KeyRing) -> None:
    seen: dict[str, Counts] = {}  # by the replicas' names
    while True:
        if keys.has_token_limits:
            usable = router.replicas.usable
            pages = await asyncio.gather(*(_page(router, replica) for replica in usable))
            for replica, page in zip(usable, pages, strict=True):
                charge(keys, replica.name, page, seen)
            for name in seen.keys() - {replica.name for replica in router.replicas}:
                del seen[name]
        await asyncio.sleep(LOOK_S)


async def _page(router: Router, replica: Replica) -> bytes:
    with suppress(ReplicaLost, TimeoutError):
        async with (
            asyncio.timeout(HEALTH_S),
            replica.request("GET", "/metrics", headers=router.own_headers()) as answer,
        ):
            return await read_whole(answer, replica.name)
    return b""


def charge(keys: KeyRing, replica: str, page: bytes, seen: dict[str, Counts]) -> None:
    """Charges what a page of metrics counts beyond what was seen before; a replica that was restarted counts anew.

    What is counted at the first look at a replica is not charged: it may serve for longer than the front does.
    """
    counts = {(kind, name): int(float(value)) for kind, name, value in _TOKENS.findall(page)}
    before = seen.get(replica)
    if counts:
        seen[replica] = counts
    if before is None:
        return
    for (kind, name), count in counts.items():
        account = keys.account(_ESCAPE.sub(r"\1", name.decode(errors="replace")))
        if account is not None:
            counted = before.get((kind, name), 0)
            account.charge(count - counted if count >= counted else count)
