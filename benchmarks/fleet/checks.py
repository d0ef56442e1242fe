"""What must hold behind any router; each check returns what went wrong, in sentences."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.fleet.deployed import DeployedReplica
from benchmarks.fleet.replicas import DEPLOYED, EAGRE, RAY_PROXY, Replica
from benchmarks.serving.stream_client import StreamClient, StreamLost, stream_completion

Server = Replica | DeployedReplica
PROMPTS = ("Once upon a time", "Die Gezeiten", "def tide(moon):", "My favourite animal is")
MAX_TOKENS = 24
LONG = 1500  # tokens of a stream that is cut
QUIET_WITHIN = 10.0  # seconds from the cut to the last page given back
NUM_CUT = 12
NUM_KILLED = 50  # resumable streams under which a replica is killed
KILL_AFTER = 1.0  # seconds from their begin
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


async def check_streams(session: aiohttp.ClientSession, front: str, replicas: Sequence[Server]) -> list[str]:
    """Every answer through the router is the one that a replica gives without it."""
    failures = []
    for body in bodies():
        wanted = [await stream_completion(session, replica.url, body) for replica in replicas]
        got = await stream_completion(session, front, body)
        if {got.text} != {answer.text for answer in wanted}:
            failures.append(f"{body} gives {got.text!r} through the router and {wanted[0].text!r} without it")
        if got.usage.get("completion_tokens") != MAX_TOKENS:
            failures.append(f"{body} has the usage {got.usage} instead of {MAX_TOKENS} tokens")
    return failures


async def check_cuts(session: aiohttp.ClientSession, front: str, replicas: Sequence[Server]) -> list[str]:
    """A client that leaves ends its request on the replica behind the router, long before its last token."""
    body = {"prompt": "Count for ever: 1, 2, 3,", "max_tokens": LONG, "ignore_eos": True}
    cut = [stream_completion(session, front, {**body, "seed": number}, cut_after=3) for number in range(NUM_CUT)]
    await asyncio.gather(*cut)
    deadline = time.monotonic() + QUIET_WITHIN
    while left := sum([await asyncio.to_thread(replica.num_streams) for replica in replicas]):
        if time.monotonic() > deadline:
            return [f"{left} of {NUM_CUT} streams still run {QUIET_WITHIN:g} s after their clients have left"]
        await asyncio.sleep(0.1)
    return []


async def check_hits(session: aiohttp.ClientSession, front: str, replicas: Sequence[Server]) -> list[str]:
    """Prompts with one beginning find it in the cache, so they went to the replica that has computed it."""
    answers = [
        await stream_completion(session, front, {"prompt": f"{SHARED}Entry {number}: the", "max_tokens": 4})
        for number in range(8)
    ]
    cached = [answer.num_cached_tokens for answer in answers]
    if min(cached[1:]) < 0.9 * answers[0].usage["prompt_tokens"] - 16:
        return [f"the prompts have {answers[0].usage['prompt_tokens']} tokens, and were cached: {cached}"]
    return []


async def check_rolling_restart(
    session: aiohttp.ClientSession, front: str, replicas: Sequence[Server], seconds_between: float = 4.0
) -> list[str]:
    """While each replica is stopped and started again in turn, every stream of every client is whole."""
    wanted = {str(body): (await stream_completion(session, front, body)).text for body in bodies()}
    is_over = asyncio.Event()
    outcomes: Counter[str] = Counter()

    async def client(number: int) -> None:
        turn = number
        while not is_over.is_set():
            body = bodies()[turn % len(wanted)]
            turn += 1
            try:
                answer = await stream_completion(session, front, body)
                outcomes["whole" if answer.text == wanted[str(body)] else f"other text: {answer.text!r}"] += 1
            except StreamLost as lost:
                outcomes[str(lost)] += 1

    clients = [asyncio.create_task(client(number)) for number in range(NUM_CLIENTS)]
    try:
        for replica in replicas:
            await asyncio.sleep(seconds_between)
            await asyncio.to_thread(replica.restart)
        await asyncio.sleep(seconds_between)
    finally:
        is_over.set()
        await asyncio.gather(*clients)
    print(f"  rolling restart: {outcomes.pop('whole')} streams were whole")
    return [f"{count} streams: {what}" for what, count in outcomes.items()]


async def check_kill(session: aiohttp.ClientSession, front: str, replicas: Sequence[Server]) -> list[str]:
    """A replica gets SIGKILL under resumable seeded streams; all of them end with the text of an undisturbed run."""
    requests = [
        {"prompt": PROMPTS[seed % len(PROMPTS)], "seed": seed, "max_tokens": 2 * MAX_TOKENS, "temperature": 0.9,
         "ignore_eos": True, "resumable": True}
        for seed in range(NUM_KILLED)
    ]  # fmt: skip
    wanted = [
        answer.text for answer in await asyncio.gather(*(stream_completion(session, front, body) for body in requests))
    ]
    streams = [asyncio.create_task(stream_completion(session, front, body)) for body in requests]
    await asyncio.sleep(KILL_AFTER)
    num_done = sum(stream.done() for stream in streams)
    running = [await asyncio.to_thread(replica.num_streams) for replica in replicas]
    num_lost, lost = max(zip(running, replicas, strict=True), key=lambda pair: pair[0])
    await asyncio.to_thread(lost.kill)
    answers = await asyncio.gather(*streams, return_exceptions=True)
    await asyncio.to_thread(lost.start)
    print(f"  kill: {num_lost} of {NUM_KILLED} streams ran on the killed replica, {num_done} had ended before")
    failures = [f"stream {seed}: {answer}" for seed, answer in enumerate(answers) if isinstance(answer, BaseException)]
    failures += [
        f"stream {seed} has another text: {answer.text!r}"
        for seed, (answer, text) in enumerate(zip(answers, wanted, strict=True))
        if isinstance(answer, StreamClient) and answer.text != text
    ]
    return failures if num_lost else ["no stream ran when the replica was killed"]


CHECKS = {
    "streams": check_streams,
    "cuts": check_cuts,
    "hits": check_hits,
    "rolling restart": check_rolling_restart,
    "kill": check_kill,
}


def checks_of(program: Path, names: Sequence[str]) -> list[str]:
    """Those of the checks `names` that are for this router.

    Only our router moves streams to another replica. Ray's proxy routes neither by prefix nor by health.
    """
    if program == RAY_PROXY:
        return [name for name in names if name in ("streams", "cuts")]
    return [name for name in names if name != "kill" or program in (EAGRE, DEPLOYED)]
