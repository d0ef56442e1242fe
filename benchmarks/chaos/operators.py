"""Changes of the engine that race each other, with an operator's key, and floods of browsers' questions."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import orjson

from benchmarks.chaos.target import ADMIN_KEY, Target

FRIEND = "https://friend.example"  # the origin whose pages may use the server

_OPERATOR = {"Authorization": f"Bearer {ADMIN_KEY}"}
_MOST_TRIES = 200  # to let the engine compute again, while other operators stop it


async def operators_race(target: Target) -> None:
    """Several operators at once pause, wake and reset an engine; a stream gets to its end all the same."""
    streaming = asyncio.create_task(_stream(target))
    for _ in range(target.draw.randint(1, 3)):
        names = target.draw.choices(list(_CHANGES), k=target.draw.randint(2, 6))
        await asyncio.gather(*(_change(target, name) for name in names))
    await _go_on(target)
    if not await streaming:
        await _go_on(target)
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


# What each change may be answered with: 409 where the state of the moment does not allow it.
_CHANGES: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "pause": ({}, (200,)),
    "resume": ({}, (200, 409)),
    "sleep": ({}, (200,)),
    "sleep ": ({"drop_weights": True}, (200,)),
    "wake": ({}, (200,)),
    "reset_prefix_cache": ({}, (200, 409)),
    "update_weights": ({"path": "/dev/zero"}, (400, 409)),
    "update_weights ": ({"path": "/none", "drain": True}, (400, 409)),
    "abort": ({"request_id": "nobody's"}, (404,)),
    "trace": ({}, (200,)),
}


async def _change(target: Target, name: str) -> int:
    body, expected = _CHANGES[name]
    place = f"{target.url}/admin/{name.strip()}"
    method = "GET" if name == "trace" else "POST"
    try:
        # Some operators do not wait for what they asked for.
        timeout = aiohttp.ClientTimeout(target.draw.choice([0.01, 60, 60, 60]))
        async with target.session.request(
            method, place, headers=_OPERATOR, timeout=timeout, json=None if method == "GET" else body
        ) as response:
            target.ledger.note_status("operators race", response.status, expected)
            await response.read()
            return response.status
    except TimeoutError:
        target.ledger.note("operators race", "left")
        return 0


async def _go_on(target: Target) -> None:
    """Lets the engine compute, whatever state others have left it in."""
    for _ in range(_MOST_TRIES):
        if await _change(target, "wake") == 200 and await _change(target, "resume") == 200:
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
