"""Adapters that are loaded and dropped at run time: every replica gets them, also one that is started later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import ExitStack, asynccontextmanager
from os import fsdecode
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

import orjson
from aiohttp import web
from pydantic import ValidationError

from server.http.entry.guard import LOAD_ADAPTER, UNLOAD_ADAPTER
from server.http.streams.router_headers import REPLACED_HEADER
from server.protocol.admin_requests import LoadAdapterBody, UnloadAdapterBody
from server.protocol.errors import shorten
from server.router.forwarding import NOT_FOUND, WholeAnswer, ask, log_lost, lost_error, send_answer, worst_of
from server.router.replica import ProxyRequest, Replica, ReplicaLost
from server.router.replicas import no_replica
from server.router.router import ROUTER, Router
from server.startup.logs import log

# For a call at one replica, whose disk may not answer: meanwhile no replica becomes ready.
CALL_S = 600.0
RESTORE_S = 60.0  # for one adapter, which is read from a disk; a replica that is silent for longer is asked anew

Body = TypeVar("Body", LoadAdapterBody, UnloadAdapterBody)


async def load(request: web.Request) -> web.StreamResponse:
    """POST /v1/load_lora_adapter: on all replicas, or, where one of them refuses it, on none."""
    return await _call_all(request, _load)


async def unload(request: web.Request) -> web.StreamResponse:
    """POST /v1/unload_lora_adapter: on all replicas; 404 where none of them has it."""
    return await _call_all(request, _unload)


async def _call_all(
    request: web.Request, call: Callable[[Router, ProxyRequest], Coroutine[Any, Any, WholeAnswer]]
) -> web.StreamResponse:
    """The answer to a call, which goes on where its client leaves: else the replicas would have different adapters."""
    router = request.app[ROUTER]
    router.check_accepting()
    with ExitStack() as reading:
        proxied = await router.read(request, reading)
        task = asyncio.create_task(call(router, proxied))
        router.adapters.tasks.add(task)
        task.add_done_callback(router.adapters.tasks.discard)
        return await send_answer(request, router, await asyncio.shield(task))


async def _load(router: Router, proxied: ProxyRequest) -> WholeAnswer:
    async with router.adapters.lock:
        first = await _ask_first(router, proxied)
        body = _parsed(LoadAdapterBody, proxied)
        if first.status != web.HTTPOk.status_code or body is None:
            return first
        others = [replica for replica in router.replicas.usable if replica is not first.replica]
        answers = [first, *await _ask_each(others, proxied)]
        refused = next((answer for answer in answers if answer.status != web.HTTPOk.status_code), None)
        if refused is None:
            router.adapters.add(body)
            _distrust_leaving(router)
            return first
        await _undo(router, body, answers)
        return refused


async def _unload(router: Router, proxied: ProxyRequest) -> WholeAnswer:
    async with router.adapters.lock:
        if not router.replicas.usable:
            raise no_replica()
        answers = await _ask_each(router.replicas.usable, proxied)
        if not answers:
            raise lost_error()
        if any(answer.status == web.HTTPOk.status_code for answer in answers):
            body = _parsed(UnloadAdapterBody, proxied)
            if body is not None:
                router.adapters.drop(body.lora_name, is_everywhere=_are_of_all(router, answers))
                _distrust_leaving(router)
        return worst_of(answers)


@asynccontextmanager
async def restored(router: Router, replica: Replica) -> AsyncIterator[None]:
    """Gives a replica that has become ready the adapters of the others; no call changes them within the context.

    An adapter that it refuses, perhaps because its files are gone, is missing there, which the log says. Raises
    ReplicaLost.
    """
    async with router.adapters.lock:
        for body in router.adapters.calls():
            answer = await ask(replica, _call(router, body), RESTORE_S)
            if answer.status not in (web.HTTPOk.status_code, NOT_FOUND):
                log.error(
                    "adapter_not_restored", replica=replica.name, adapter=shorten(body.lora_name), status=answer.status,
                    answer=shorten(answer.body.decode(errors="replace")),
                )  # fmt: skip
        yield
        if all(each.is_usable for each in router.replicas if not each.is_leaving):
            router.adapters.forget_lingering()


async def _ask_first(router: Router, proxied: ProxyRequest) -> WholeAnswer:
    """The answer of the first replica that gives one; raises ApiError."""
    usable = router.replicas.usable
    if not usable:
        raise no_replica()
    for replica in usable:
        for answer in await _ask_each([replica], proxied):
            return answer
    raise lost_error()


async def _ask_each(replicas: Sequence[Replica], proxied: ProxyRequest) -> list[WholeAnswer]:
    """The answers of all that give one; the others are told again before they get requests."""

    async def answer_of(replica: Replica) -> WholeAnswer | None:
        try:
            return await ask(replica, proxied, CALL_S)
        except ReplicaLost as lost:
            log_lost(replica, lost)
            replica.distrust(str(lost))
            return None

    answers = await asyncio.gather(*map(answer_of, replicas))
    return [answer for answer in answers if answer is not None]


async def _undo(router: Router, body: LoadAdapterBody, answers: Sequence[WholeAnswer]) -> None:
    """Has each replica that has loaded it load again what had the name before, or else drop the name."""
    loaded = [answer for answer in answers if answer.status == web.HTTPOk.status_code]
    undone = [_before(body, answer) for answer in loaded]
    undoing = await asyncio.gather(
        *(_ask_each([answer.replica], _call(router, call)) for answer, call in zip(loaded, undone, strict=True))
    )
    if router.adapters.get(body.lora_name) is not None or (all(undoing) and _are_of_all(router, answers)):
        return
    replaced = next((call for call in undone if isinstance(call, LoadAdapterBody)), None)
    if replaced is not None:
        router.adapters.add(replaced)
    elif not body.load_inplace:
        router.adapters.linger(body.lora_name)


def _before(body: LoadAdapterBody, answer: WholeAnswer) -> LoadAdapterBody | UnloadAdapterBody:
    """The call that undoes a load at the replica that has answered it so."""
    replaced = answer.answer.headers.get(REPLACED_HEADER)
    if replaced is None:
        return UnloadAdapterBody(lora_name=body.lora_name)
    path = fsdecode(unquote_to_bytes(replaced))
    return body.model_copy(update={"lora_path": path, "load_inplace": True})


def _are_of_all(router: Router, answers: Sequence[WholeAnswer]) -> bool:
    """Whether no replica is left that has not answered, and that may have something still."""
    return {replica.name for replica in router.replicas} <= {answer.replica.name for answer in answers}


def _distrust_leaving(router: Router) -> None:
    """Has replicas that were not asked, because they leave, told as soon as may be: they may come back."""
    for replica in router.replicas:
        if replica.is_leaving:
            replica.distrust("it leaves, and lacks a change of adapters")


def _call(router: Router, body: LoadAdapterBody | UnloadAdapterBody) -> ProxyRequest:
    """A call of the router itself, as an operator."""
    path = LOAD_ADAPTER if isinstance(body, LoadAdapterBody) else UNLOAD_ADAPTER
    headers = {"Content-Type": "application/json"}
    if router.settings.admin_keys:
        headers["Authorization"] = f"Bearer {router.settings.admin_keys[0]}"
    content = body.model_dump(exclude_none=True)
    if isinstance(body, LoadAdapterBody):
        content["load_inplace"] = True
    return ProxyRequest("POST", path, headers, orjson.dumps(content))


def _parsed(kind: type[Body], proxied: ProxyRequest) -> Body | None:
    try:
        return kind.model_validate_json(proxied.body or b"{}")
    except ValidationError:
        return None  # the replica says what is wrong with it
