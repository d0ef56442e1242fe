"""A server under attack, beside well-behaved streams whose texts must stay what they are.

    python -m benchmarks.chaos                            # a minute
    python -m benchmarks.chaos --seconds 3600 --seed 7    # by hand
    python -m benchmarks.chaos --each 10                  # each attack alone, and the gaps beside it

Starts `eagre serve` with few pages, short timeouts and keys. Twenty well-behaved streams run all the time; what each
gets is compared with what it got undisturbed. Exits with 1 if a text differs, pages, requests, descriptors or tasks
are left, memory has grown, or an answer came that no attack asked for.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import aiohttp

from benchmarks.chaos import requests, sockets
from benchmarks.chaos.aftermath import Remains, when_quiet
from benchmarks.chaos.ledger import Ledger
from benchmarks.chaos.target import KEY, Target
from benchmarks.chaos.witnesses import Gaps, Witness, read_stream, undisturbed
from benchmarks.serving.command import run
from benchmarks.serving.server_process import RunningServer, eagre_command, free_port, running_server

Attack = Callable[[Target], Awaitable[None]]

ATTACKS: tuple[Attack, ...] = (
    requests.cut_stream, requests.cut_before_the_answer, requests.whole_answer, requests.chat, requests.deadline,
    requests.many_answers, requests.malformed, requests.endless_lists, requests.oversized, requests.long_prompt,
    requests.strangers_key, requests.wrong_places, sockets.slow_loris, sockets.stalled_reader, sockets.frozen_client,
    sockets.half_closed, sockets.garbage, sockets.socket_of_many, sockets.wrong_frames, sockets.key_in_a_protocol,
)  # fmt: skip

WITNESS_KEY = "witness-key-of-the-twenty"
MAX_BODY_BYTES = 4 << 20
MAX_GAP_GROWTH = 2.0  # of the 99th percentile beside an attack
ATTACK_TIMEOUT = 120.0  # seconds; an attack that takes longer was left hanging


def server_flags(folder: Path, num_pages: int) -> list[str]:
    """A server with everything small enough to run out."""
    keys = folder / "keys"
    keys.write_text(f"{KEY} everybody\n{WITNESS_KEY} witness\n", encoding="utf-8")
    return [
        "--api-key-file", str(keys), "--max-num-seqs", "48", "--num-pages", str(num_pages), "--max-model-len", "2048",
        "--ping-interval", "1", "--write-timeout", "3", "--max-body-bytes", str(MAX_BODY_BYTES),
        "--max-num-queued-requests", "512",
    ]  # fmt: skip


async def watch_witnesses(
    session: aiohttp.ClientSession, url: str, witnesses: list[Witness], texts: list[str], gaps: Gaps, ledger: Ledger,
    until: Callable[[], bool],
) -> int:  # fmt: skip
    """Runs every witness again and again; how many streams were compared."""

    async def repeat(witness: Witness, text: str) -> int:
        num_streams = 0
        while not until():
            try:
                got = await read_stream(session, url, witness, gaps)
            except (AssertionError, aiohttp.ClientError) as error:
                ledger.fail(f"witness {witness.index} was disturbed: {error}")
                await asyncio.sleep(1.0)
                continue
            if got != text:
                ledger.fail(f"witness {witness.index} got {got!r} and should have got {text!r}")
            num_streams += 1
        return num_streams

    return sum(await asyncio.gather(*(repeat(*pair) for pair in zip(witnesses, texts, strict=True))))


async def attack(target: Target, attacks: Sequence[Attack], num_attackers: int, until: Callable[[], bool]) -> None:
    """Runs random attacks until it is time to stop."""

    async def attacker() -> None:
        while not until():
            chosen = target.draw.choice(attacks)
            try:
                async with asyncio.timeout(ATTACK_TIMEOUT):
                    await chosen(target)
            except TimeoutError:
                target.ledger.fail(f"{chosen.__name__} was left hanging for {ATTACK_TIMEOUT:g} s")
            except (aiohttp.ClientError, ConnectionError) as error:
                target.ledger.note(chosen.__name__.replace("_", " "), type(error).__name__)

    await asyncio.gather(*(attacker() for _ in range(num_attackers)))


async def chaos(server: RunningServer, options: argparse.Namespace) -> int:
    """Everything but the server's start; the process's exit status."""
    ledger, draw, url = Ledger(), random.Random(options.seed), server.url
    witnesses = [Witness(index) for index in range(options.witnesses)]

    def session(key: str) -> aiohttp.ClientSession:
        headers = {"Authorization": f"Bearer {key}"}
        return aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0, force_close=True))

    async with session(WITNESS_KEY) as good, session(KEY) as bad:
        texts, calm = await undisturbed(good, url, witnesses)
        print(f"calm: gaps of {len(witnesses)} streams p50 {calm.quantile(0.5):.1f}, p99 {calm.quantile(0.99):.1f} ms")
        target = Target(url, bad, draw, ledger, MAX_BODY_BYTES)
        # The first round is a third of the time: it touches what takes memory only when it is used, such as pages.
        rounds = [(list(ATTACKS), options.seconds / 3)]
        rounds += [([one], options.each) for one in ATTACKS] if options.each else [(list(ATTACKS), options.seconds)]
        before: Remains | None = None
        for attacks, seconds in rounds:
            end = time.monotonic() + seconds
            gaps = Gaps()

            def is_over(end: float = end) -> bool:
                return time.monotonic() >= end

            num_streams, _ = await asyncio.gather(
                watch_witnesses(good, url, witnesses, texts, gaps, ledger, is_over),
                attack(target, attacks, options.attackers, is_over),
            )
            name = attacks[0].__name__.replace("_", " ") if len(attacks) == 1 else "everything"
            growth = gaps.quantile(0.99) / max(calm.quantile(0.99), 0.001)
            print(
                f"{name:>26}  {num_streams} streams compared, gaps p50 {gaps.quantile(0.5):.1f}, "
                f"p99 {gaps.quantile(0.99):.1f} ms, {growth:.2f} times the calm"
            )
            before = before or await when_quiet(good, url, server.pid)
            if len(attacks) == 1 and growth > MAX_GAP_GROWTH:
                ledger.fail(f"beside '{name}' the p99 gap is {growth:.2f} times the calm one")
        after = await when_quiet(good, url, server.pid)
        again, _ = await undisturbed(good, url, witnesses)
        if again != texts:
            ledger.fail("the witnesses' texts have changed")
    assert before is not None
    _print(ledger, before, after)
    failures = [*ledger.failures, *after.failures_since(before)]
    for failure in failures:
        print(f"FAILED: {failure}")
    return 1 if failures else 0


def _print(ledger: Ledger, before: Remains, after: Remains) -> None:
    print(f"{ledger.num_attacks:,} outcomes of attacks:")
    for row in ledger.rows():
        print(row)
    rows = {
        "preemptions": f"{after.stats['num_preemptions']:,}",
        "steps": f"{after.stats['num_steps']:,}",
        "pages": f"{after.stats['num_active_pages']} held, {after.stats['num_cached_pages']} cached, "
        f"{after.stats['num_free_pages']} free of {after.stats['num_pages']}",
        "descriptors": f"{before.num_descriptors} before, {after.num_descriptors} after",
        "tasks": f"{before.num_tasks} before, {after.num_tasks} after",
        "resident MiB": f"{before.resident_bytes / 2**20:,.0f} before, {after.resident_bytes / 2**20:,.0f} after",
    }
    for name, value in rows.items():
        print(f"{name:>26}  {value}")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--each", type=float, default=0.0, metavar="SECONDS", help="each attack alone for so long")
    parser.add_argument("--attackers", type=int, default=24, help="attacks at once")
    parser.add_argument("--witnesses", type=int, default=20, help="well-behaved streams")
    parser.add_argument("--num-pages", type=int, default=420, help="of the server's cache, 16 tokens each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("server_arguments", nargs="*", help="more flags of `eagre serve`, after --")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="eagre-chaos-") as folder:
        port = free_port()
        flags = [*server_flags(Path(folder), options.num_pages), *options.server_arguments]
        with running_server(eagre_command(port, flags), f"http://127.0.0.1:{port}") as server:
            return asyncio.run(chaos(server, options))


if __name__ == "__main__":
    run("benchmarks.chaos", main)
