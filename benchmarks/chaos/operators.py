"""Changes of the engine that race each other, with an operator's key, and floods of browsers' questions."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import aiohttp
import orjson

from benchmarks.chaos.target import ADMIN_KEY, Target

FRIEND = "https://friend.example"  # the origin whose pages may use the server

_OPERATOR = {"Authorization": f"Bearer {ADMIN_KEY}"}
_MOST_TRIES = 200  # to let the engine compute again, while other operators stop it


class _Change(NamedTuple):
    """What an operator asks for, and what it may be answered with: 409 where the state of the moment forbids it."""

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
    _Change("abort", (404,), {"request_id": "nobody's"}),
    _Change("trace", method="GET"),
)


async def operators_race(target: Target) -> None:
    """Several operators at once pause, wake and reset an engine; a stream gets to its end all the same."""
    streaming = asyncio.create_task(_stream(target))
    for _ in range(target.draw.randint(1, 3)):
        changes = target.draw.choices(_CHANGES, k=target.draw.randint(2, 6))
        await asyncio.gather(*(_ask(target, change) for change in changes))
    while not streaming.done():  # what somebody has not waited for may stop the engine once more
        await _go_on(target)
        await asyncio.wait([streaming], timeout=1.0)
    if not await streaming:
        target.ledger.fail("operators race: a stream ended without its end")


async def preflights(target: Target) -> None:
    """A flood of browsers' questions, and of what they must not send."""
    for _ in range(target.draw.randint(1, 30)):
        origin = target.draw.choice([FRIEND, "https://evil.example", "null", FRIEND + ".evil.example", "x" * 4000])
        asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        if target.draw.random() < 0.5:
            asked["Access-Control-Request-Headers"] = target.draw.choice(["authorization", "x, " * 1000])
        path = target.draw.choice(["/v1/completions", "/v1/responses", "/admin/pause", "/none", "/v1/stream"])
        async with target.session.options(target.url + path, headers=asked) as response:
            target.ledger.note_status("preflights", response.status, (204,) if origin == FRIEND else (403,))
    headers = target.draw.choice([{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}])
    body = {"prompt": "a", "max_tokens": 1}
    async with target.session.post(f"{target.url}/v1/completions", json=body, headers=headers) as response:
        target.ledger.note_status("preflights", response.status, (403,))


async def _ask(target: Target, change: _Change) -> int:
    """The status of the answer; 0 where the operator has not waited for it."""
    timeout = aiohttp.ClientTimeout(target.draw.choice([0.01, 60, 60, 60]))
    place = f"{target.url}/admin/{change.name}"
    try:
        async with target.session.request(
            change.method, place, headers=_OPERATOR, timeout=timeout, json=change.body
        ) as response:
            target.ledger.note_status("operators race", response.status, change.expected)
            await response.read()
            return response.status
    except TimeoutError:
        target.ledger.note("operators race", "left")
        return 0


async def _go_on(target: Target) -> None:
    """Lets the engine compute, whatever state others have left it in."""
    for _ in range(_MOST_TRIES):
        if await _ask(target, _WAKE) == 200 and await _ask(target, _RESUME) == 200:
            return
        await asyncio.sleep(0.01)
    target.ledger.fail("operators race: the engine could not be made to go on")


async def _stream(target: Target) -> bool:
    """Whether a stream had everything that it must have."""
    body = {"prompt": "The tide", "max_tokens": 8, "ignore_eos": True, "stream": True, "logprobs": 0}
    async with target.session.post(f"{target.url}/v1/completions", json=body) as response:
        target.ledger.note_status("operators race", response.status, (200, 429))
        if response.status != 200:
            return True
        num_tokens, is_done = 0, False
        async for line in response.content:
            if line.startswith(b"data: [DONE]"):
                is_done = True
            elif line.startswith(b"data: "):
                for choice in orjson.loads(line[6:]).get("choices", ()):
                    num_tokens += len((choice["logprobs"] or {}).get("tokens", ()))
        return is_done and num_tokens == 8
