"""The attackers, in a process of their own, so that their cost does not delay the reference streams."""

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import aiohttp

from benchmarks.chaos.attacks import (
    batches,
    mutated_bodies,
    operators,
    random_bytes,
    requests,
    sockets,
    stored_state,
    strangers,
)
from benchmarks.chaos.ledger import Ledger
from benchmarks.chaos.pictures.attack import hostile_pictures
from benchmarks.chaos.target import KEY, Target

Attack = Callable[[Target], Awaitable[None]]


def attack_name(name: str) -> str:
    """An attack's name as it is listed, from how it is written in code or on a command line."""
    return name.strip().replace("_", " ")


_ALL: tuple[Attack, ...] = (
    requests.cut_stream, requests.cut_before_the_answer, requests.whole_answer, requests.chat, requests.deadline,
    requests.many_answers, requests.malformed, requests.endless_lists, requests.oversized, requests.long_prompt,
    requests.wrong_keys, requests.wrong_paths, sockets.slow_loris, sockets.stalled_reader, sockets.frozen_client,
    sockets.half_closed, sockets.garbage, sockets.socket_of_many, sockets.wrong_frames, sockets.key_in_a_protocol,
    stored_state.stored_response, stored_state.filled_store, stored_state.background_flood, stored_state.forged_ids,
    stored_state.messages, stored_state.websocket_responses, stored_state.resumed_by_many, stored_state.queries,
    operators.preflights, random_bytes.fuzz, requests.hard_grammars, sockets.forbidden_frames,
    strangers.compression_bomb, strangers.unwanted_body, strangers.silent_crowd, hostile_pictures,
    batches.batch_files, batches.batches, mutated_bodies.mutated_bodies,
)  # fmt: skip
ATTACKS: dict[str, Attack] = {attack_name(attack.__name__): attack for attack in _ALL}
# They stop all streams for a while, as operators may, or fill the queue of new connections; each runs only where it is
# named.
STOPPING: dict[str, Attack] = {
    "operators race": operators.operators_race, "reconnecting crowd": strangers.reconnecting_crowd,
}  # fmt: skip

ATTACK_TIMEOUT = 300.0  # seconds; an attack that takes longer was left hanging, however busy the machine is
NICENESS = 19


async def attack(target: Target, attacks: dict[str, Attack], num_attackers: int, seconds: float) -> None:
    """Starts random attacks for `seconds`, and returns when the last of them has ended."""
    end = time.monotonic() + seconds
    names = list(attacks)

    async def attacker() -> None:
        while time.monotonic() < end:
            name = target.draw.choice(names)
            try:
                async with asyncio.timeout(ATTACK_TIMEOUT):
                    await attacks[name](target)
            except TimeoutError:
                target.ledger.fail(f"{name} was left hanging for {ATTACK_TIMEOUT:g} s")
            except (aiohttp.ClientError, OSError) as error:  # a ConnectionError, or a socket not connected any more
                target.ledger.note(name, type(error).__name__)

    await asyncio.gather(*(attacker() for _ in range(num_attackers)))


async def attackers_process(
    url: str, name: str | None, num_attackers: int, seconds: float, seed: int, ledger: Ledger
) -> Ledger:
    """Runs one attack, or all in random order, in a new process of the lowest priority; returns the ledger."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(pool, _run_attackers, url, name, num_attackers, seconds, seed, ledger)


def _run_attackers(url: str, name: str | None, num_attackers: int, seconds: float, seed: int, ledger: Ledger) -> Ledger:
    os.nice(NICENESS)
    strangers.raise_file_limit()

    async def run() -> Ledger:
        headers = {"Authorization": f"Bearer {KEY}"}
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(headers=headers, connector=connector) as session:
            target = Target(url, session, random.Random(seed), ledger)
            attacks = ATTACKS if name is None else {name: (ATTACKS | STOPPING)[name]}
            await attack(target, attacks, num_attackers, seconds)
        return target.ledger

    return asyncio.run(run())
