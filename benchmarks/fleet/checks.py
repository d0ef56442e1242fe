"""What must hold behind any router; each check returns what went wrong, in sentences."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import aiohttp

from benchmarks.fleet.replicas import Replica
from benchmarks.fleet.streams import Answer, StreamLost, ask

PROMPTS = ("Once upon a time", "Die Gezeiten", "def tide(moon):", "My favourite animal is")
MAX_TOKENS = 24
LONG = 1500  # tokens of a stream that somebody cuts
QUIET_WITHIN = 10.0  # seconds from the cut to the last page given back
NUM_CUT = 12
NUM_CLIENTS = 6  # of a rolling restart
SHARED = "The harbour master keeps a log of every tide, of every ship and of every lamp on the pier. " * 16


def bodies() -> list[dict[str, Any]]:
    """Seeded completions and chats; whichever replica answers, the text is the same."""
    sampled = {"max_tokens": MAX_TOKENS, "temperature": 0.9, "ignore_eos": True}
    completions = [{"prompt": prompt, "seed": seed, **sampled} for seed, prompt in enumerate(PROMPTS)]
    chats = [
        {"messages": [{"role": "user", "content": prompt}], "seed": seed, **sampled}
        for seed, prompt in enumerate(PROMPTS)
    ]
    return [*completions, *chats]


async def check_streams(session: aiohttp.ClientSession, front: str, replicas: Sequence[Replica]) -> list[str]:
    """Every answer through the router is the one that a replica gives without it."""
    failures = []
    for body in bodies():
        wanted = [await ask(session, replica.url, body) for replica in replicas]
        got = await ask(session, front, body)
        if {got.text} != {answer.text for answer in wanted}:
            failures.append(f"{body} gives {got.text!r} through the router and {wanted[0].text!r} without it")
        if got.usage.get("completion_tokens") != MAX_TOKENS:
            failures.append(f"{body} has the usage {got.usage} in place of {MAX_TOKENS} tokens")
    return failures


async def check_cuts(session: aiohttp.ClientSession, front: str, replicas: Sequence[Replica]) -> list[str]:
    """A client that leaves ends its request on the replica behind the router, long before its last token."""
    body = {"prompt": "Count for ever: 1, 2, 3,", "max_tokens": LONG, "ignore_eos": True}
    cut = [ask(session, front, {**body, "seed": number}, cut_after=3) for number in range(NUM_CUT)]
    await asyncio.gather(*cut)
    deadline = time.monotonic() + QUIET_WITHIN
    while left := sum([await asyncio.to_thread(replica.num_streams) for replica in replicas]):
        if time.monotonic() > deadline:
            return [f"{left} of {NUM_CUT} streams still run {QUIET_WITHIN:g} s after their clients have left"]
        await asyncio.sleep(0.1)
    return []


async def check_hits(session: aiohttp.ClientSession, front: str, replicas: Sequence[Replica]) -> list[str]:
    """Prompts with one beginning find it in the cache, so they went to the replica that has computed it."""
    answers = [
        await ask(session, front, {"prompt": f"{SHARED}Entry {number}: the", "max_tokens": 4}) for number in range(8)
    ]
    cached = [answer.num_cached_tokens for answer in answers]
    if min(cached[1:]) < 0.9 * answers[0].usage["prompt_tokens"] - 16:
        return [f"the prompts have {answers[0].usage['prompt_tokens']} tokens, and were cached: {cached}"]
    return []


async def check_rolling_restart(
    session: aiohttp.ClientSession, front: str, replicas: Sequence[Replica], seconds_between: float = 4.0
) -> list[str]:
    """While each replica is stopped and started again in turn, every stream of every client is whole."""
    wanted = {str(body): (await ask(session, front, body)).text for body in bodies()}
    is_over = asyncio.Event()
    outcomes: Counter[str] = Counter()

    async def client(number: int) -> None:
        turn = number
        while not is_over.is_set():
            body = bodies()[turn % len(wanted)]
            turn += 1
            try:
                answer: Answer = await ask(session, front, body)
                outcomes["whole" if answer.text == wanted[str(body)] else f"other text: {answer.text!r}"] += 1
            except StreamLost as lost:
                outcomes[str(lost)] += 1

    clients = [asyncio.create_task(client(number)) for number in range(NUM_CLIENTS)]
    try:
        for replica in replicas:
            await asyncio.sleep(seconds_between)
            await replica.restart()
        await asyncio.sleep(seconds_between)
    finally:
        is_over.set()
        await asyncio.gather(*clients)
    print(f"  rolling restart: {outcomes.pop('whole')} streams were whole")
    return [f"{count} streams: {what}" for what, count in outcomes.items()]


CHECKS = {
    "streams": check_streams,
    "cuts": check_cuts,
    "hits": check_hits,
    "rolling restart": check_rolling_restart,
}
