"""The attackers, in a process of their own, so that their cost does not delay the reference streams.

    python -m benchmarks.chaos.attackers URL --seconds 10 --seed 3 --attack "slow loris"

Prints the ledger as JSON. Without `--attack` every attack may come, in the order that the seed draws.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable, Sequence

import aiohttp
import orjson

from benchmarks.chaos import operators, requests, sockets, stored_state
from benchmarks.chaos.ledger import Ledger
from benchmarks.chaos.target import KEY, Target
from benchmarks.serving.command import new_parser, run
from benchmarks.serving.server_process import ROOT

PROGRAM = "benchmarks.chaos.attackers"
Attack = Callable[[Target], Awaitable[None]]

_ALL: tuple[Attack, ...] = (
    requests.cut_stream, requests.cut_before_the_answer, requests.whole_answer, requests.chat, requests.deadline,
    requests.many_answers, requests.malformed, requests.endless_lists, requests.oversized, requests.long_prompt,
    requests.wrong_keys, requests.wrong_paths, sockets.slow_loris, sockets.stalled_reader, sockets.frozen_client,
    sockets.half_closed, sockets.garbage, sockets.socket_of_many, sockets.wrong_frames, sockets.key_in_a_protocol,
    stored_state.stored_response, stored_state.filled_store, stored_state.background_flood, stored_state.forged_ids,
    stored_state.messages, stored_state.websocket_responses, stored_state.resumed_by_many, stored_state.queries,
    operators.preflights,
)  # fmt: skip
ATTACKS: dict[str, Attack] = {attack.__name__.replace("_", " "): attack for attack in _ALL}
# They stop all streams for a while, as operators may; each runs only where it is named.
STOPPING: dict[str, Attack] = {"operators race": operators.operators_race}

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
            except (aiohttp.ClientError, ConnectionError) as error:
                target.ledger.note(name, type(error).__name__)

    await asyncio.gather(*(attacker() for _ in range(num_attackers)))


async def attackers_process(url: str, name: str | None, num_attackers: int, seconds: float, seed: int) -> Ledger:
    """Runs the attackers; their ledger.

    Raises:
        RuntimeError: their process failed.
    """
    command = [sys.executable, "-m", PROGRAM, url, "--seconds", str(seconds), "--seed", str(seed)]
    command += ["--attackers", str(num_attackers), *([] if name is None else ["--attack", name])]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode != 0:
        raise RuntimeError(f"the attackers' process ended with {process.returncode}")
    return Ledger.from_json(output)


async def _attack(options: argparse.Namespace) -> Ledger:
    headers = {"Authorization": f"Bearer {KEY}"}
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(headers=headers, connector=connector) as session:
        target = Target(options.url, session, random.Random(options.seed), Ledger())
        attacks = ATTACKS if options.attack is None else {options.attack: (ATTACKS | STOPPING)[options.attack]}
        await attack(target, attacks, options.attackers, options.seconds)
    return target.ledger


def main(arguments: Sequence[str]) -> int:
    parser = new_parser(PROGRAM, __doc__)
    parser.add_argument("url")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--attackers", type=int, default=24, help="attacks at once")
    parser.add_argument("--attack", choices=list(ATTACKS | STOPPING), help="this one alone")
    options = parser.parse_args(arguments)
    os.nice(NICENESS)
    sys.stdout.buffer.write(orjson.dumps(asyncio.run(_attack(options)).to_dict()))
    return 0


if __name__ == "__main__":
    run(PROGRAM, main)
