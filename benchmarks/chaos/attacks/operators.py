"""Attacks with an operator's key, whose changes of the engine race each other, and floods of CORS preflights."""

import asyncio
from typing import Any, NamedTuple

import aiohttp
import orjson

from benchmarks.chaos.target import ADMIN_KEY, Target
from server.cli.client.sse_parser import SseParser

FRIEND = "https://friend.example"  # the origin whose pages may use the server

_OPERATOR = {"Authorization": f"Bearer {ADMIN_KEY}"}
_MOST_TRIES = 200  # to let the engine compute again, while other operators stop it


class _Change(NamedTuple):
    """An administrative request and its expected statuses: 409 where the state of the engine forbids it."""

    name: str
    expected: tuple[int, ...] = (200,)
    body: dict[str, Any] | None = None
    method: str = "POST"


_RESUME, _WAKE = _Change("resume", (200, 409)), _Change("wake")
_CHANGES = (
    _RESUME,
    _WAKE,
    _Change("pause"),
    _Change("sleep"),
    _Change("sleep", body={"drop_weights": True}),
    _Change("reset_prefix_cache", (200, 409)),
    _Change("update_weights", (400, 409), {"path": "/dev/zero"}),
    _Change("update_weights", (400, 409), {"path": "/none", "drain": True}),
    _Change("abort", (404,), {"request_id": "unknown"}),
    _Change("trace", method="GET"),
)


async def operators_race(target: Target) -> None:
    """Several operators at once pause, wake and reset an engine; a stream gets to its end all the same."""
    streaming = asyncio.create_task(_stream(target))
    for _ in range(target.draw.randint(1, 3)):
        changes = target.draw.choices(_CHANGES, k=target.draw.randint(2, 6))
        await asyncio.gather(*(_ask(target, change) for change in changes))
    while not streaming.done():  # a request that was not waited for may stop the engine once more
        await _go_on(target)
        await asyncio.wait([streaming], timeout=1.0)
    if not await streaming:
        target.ledger.fail("operators race: a stream ended without its end")


async def preflights(target: Target) -> None:
    """CORS preflights of allowed and other origins, and requests of another origin."""
    for _ in range(target.draw.randint(1, 30)):
        origin = target.draw.choice([FRIEND, "https://evil.example", "null", FRIEND + ".evil.example", "x" * 4000])
        preflight = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        if target.draw.random() < 0.5:
            preflight["Access-Control-Request-Headers"] = target.draw.choice(["authorization", "x, " * 1000])
        path = target.draw.choice(["/v1/completions", "/v1/responses", "/admin/pause", "/none", "/v1/stream"])
        await target.ask("preflights", "OPTIONS", path, (200,) if origin == FRIEND else (403,), headers=preflight)
    headers = target.draw.choice([{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}])
    body = {"prompt": "a", "max_tokens": 1}
    await target.ask("preflights", "POST", "/v1/completions", (403,), json=body, headers=headers)


async def _ask(target: Target, change: _Change) -> int:
    """The status of the response; 0 where the operator has not waited for it."""
    timeout = aiohttp.ClientTimeout(target.draw.choice([0.01, 60, 60, 60]))
    try:
        status, _ = await target.ask(
            "operators race", change.method, f"/admin/{change.name}", change.expected, headers=_OPERATOR,
            timeout=timeout, json=change.body,
        )  # fmt: skip
        return status
    except TimeoutError:
        target.ledger.note("operators race", "left")
        return 0


async def _go_on(target: Target) -> None:
    """Wakes and resumes the engine, whatever state others have left it in."""
    for _ in range(_MOST_TRIES):
        if await _ask(target, _WAKE) == 200 and await _ask(target, _RESUME) == 200:
            return
        await asyncio.sleep(0.01)
    target.ledger.fail("operators race: the engine could not be made to go on")


async def _stream(target: Target) -> bool:
    """Whether a stream had all its tokens and its end, or was refused."""
    body = {"prompt": "The tide", "max_tokens": 8, "ignore_eos": True, "stream": True, "logprobs": 0}
    status, text = await target.ask("operators race", "POST", "/v1/completions", (200, 429), json=body)
    if status != 200:
        return True
    *events, last = SseParser().feed(text)
    choices = [choice for event in events for choice in orjson.loads(event).get("choices", ())]
    num_tokens = sum(len((choice["logprobs"] or {}).get("tokens", ())) for choice in choices)
    return last == b"[DONE]" and num_tokens == 8
