"""A server under attack, beside well-behaved streams whose texts must stay what they are.

    python -m benchmarks.chaos                            # a minute
    python -m benchmarks.chaos --seconds 3600 --seed 7    # by hand
    python -m benchmarks.chaos --each 10                  # each attack alone, and the gaps beside it

Starts `eagre serve` with few pages, short timeouts and keys. Twenty well-behaved streams run all the time; what each
gets is compared with what it got undisturbed. The attackers are a process of their own (benchmarks.chaos.attackers),
which stands behind the server's threads: attackers are other machines in life, and take no cores from it.
Exits with 1 if a text differs, pages, requests, descriptors or tasks are left, memory has grown, or an answer came that
no attack asked for. With --each, calm and attacked times alternate, and it is also a failure where the 99th percentile
of the gaps between a stream's pieces is more than twice the calm one. How it compares with the one beside as many
well-behaved clients is printed too: computing more rows takes longer, whoever asks for them. Below each attack stand
the longest pauses of the server's asyncio loop, of its interpreter lock and of the host's part of a step, each with
the thread that computed meanwhile and where it was, the longest step and the longest garbage collection
(benchmarks.chaos.watcher).
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import aiohttp

from benchmarks.chaos.aftermath import Remains, when_quiet
from benchmarks.chaos.attackers import ATTACKS, STOPPING
from benchmarks.chaos.ledger import Ledger
from benchmarks.chaos.operators import FRIEND
from benchmarks.chaos.pauses import Pauses, describe
from benchmarks.chaos.rounds import Round, Stage
from benchmarks.chaos.target import ADMIN_KEY, KEY, MAX_BODY_BYTES
from benchmarks.chaos.witnesses import Witness, undisturbed
from benchmarks.serving.command import run
from benchmarks.serving.resident_memory import ResidentMemory
from benchmarks.serving.server_process import RunningServer, eagre_command, free_port, running_server
from engine.interface.config import TILE_SIZE

MAX_NUM_SEQS = 48
WITNESS_KEY = "witness-key-of-the-twenty"
TARGET_GAP_MS = 15  # about what twenty streams alone take for a step
MAX_GAP_GROWTH = 2.0  # of the 99th percentile beside an attack
GOOD_CLIENTS = "whole answer"  # the attack that is none
ROUND_SECONDS = 60.0  # between two looks at the memory


def server_flags(folder: Path, num_pages: int) -> list[str]:
    """A server with everything small enough to run out."""
    keys = folder / "keys"
    keys.write_text(f"{KEY} everybody\n{WITNESS_KEY} witness\n", encoding="utf-8")
    return [
        "--api-key-file", str(keys), "--admin-key", ADMIN_KEY, "--allowed-origins", FRIEND,
        "--max-num-seqs", str(MAX_NUM_SEQS), "--num-pages", str(num_pages),
        "--max-model-len", "2048",
        # aiohttp closes a WebSocket whose client has not answered a ping after half the interval; a witness on a busy
        # machine must be in time.
        "--ping-interval", "8", "--write-timeout", "3", "--max-body-bytes", str(MAX_BODY_BYTES),
        # The least that so many requests allow, so that prompts lengthen the steps of the others as little as can be.
        "--max-num-queued-requests", "512", "--max-num-batched-tokens", str(MAX_NUM_SEQS + TILE_SIZE),
        "--target-gap", str(TARGET_GAP_MS),
        # What is kept for clients that may come back is small, and is soon given up.
        "--resume-grace", "2", "--resume-max-bytes", str(4 << 20), "--resume-max-streams", "64",
        "--store", str(folder / "store.db"), "--store-bytes", str(16 << 20),
    ]  # fmt: skip


async def chaos(server: RunningServer, options: argparse.Namespace, pauses: Pauses) -> int:
    """Everything but the server's start; the process's exit status."""
    url, witnesses = server.url, [Witness(index) for index in range(options.witnesses)]
    headers = {"Authorization": f"Bearer {WITNESS_KEY}"}
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(headers=headers, connector=connector) as session:
        texts, calm = await undisturbed(session, url, witnesses)
        print(f"calm: gaps of {len(witnesses)} streams p50 {calm.quantile(0.5):.1f}, p99 {calm.quantile(0.99):.1f} ms")
        stage = Stage(url, session, witnesses, texts, options.attackers, pauses)
        # The first round touches what takes memory only when it is used, such as pages.
        await stage.attacked(min(options.seconds / 3, ROUND_SECONDS), options.seed)
        before = await when_quiet(session, url, server.pid)
        await (_each(stage, options, server.pid) if options.each else _everything(stage, options, server.pid))
        after = await when_quiet(session, url, server.pid)
        again, _ = await undisturbed(session, url, witnesses)
        if again != texts:
            stage.ledger.fail("the witnesses' texts have changed")
    _print(stage.ledger, before, after)
    failures = [*stage.ledger.failures, *after.failures_since(before)]
    for failure in failures:
        print(f"FAILED: {failure}")
    return 1 if failures else 0


async def _everything(stage: Stage, options: argparse.Namespace, pid: int) -> None:
    """Every attack at once, with a line for each minute."""
    left, resident = options.seconds, list[float]()
    while left > 0:
        seconds = min(left, ROUND_SECONDS)
        left -= seconds
        now = await stage.attacked(seconds, options.seed)
        remains = await when_quiet(stage.session, stage.url, pid)
        resident.append(remains.resident_bytes / 2**20)
        print(
            f"{options.seconds - left:6.0f} s  {now.num_streams} streams compared, gaps p50 {now.p50:.1f}, "
            f"p99 {now.p99:.1f} ms, {remains.resident_bytes / 2**20:,.0f} MiB resident, "
            f"{remains.num_descriptors} descriptors, {remains.num_tasks} tasks",
            flush=True,
        )
        _print_pauses(now)
    _print_slope(resident)


def _print_slope(resident: Sequence[float]) -> None:
    """How resident memory has grown from minute to minute, in MiB, once the first third has touched everything."""
    settled = resident[len(resident) // 3 :]
    if len(settled) >= 3:
        slope = statistics.linear_regression(range(len(settled)), settled).slope
        print(f"resident memory grew by {slope:+.2f} MiB in each of the last {len(settled)} minutes", flush=True)


async def _each(stage: Stage, options: argparse.Namespace, pid: int) -> None:
    """Each attack alone, after a calm time of the same length."""
    print(f"{'p99 gap in ms beside':>26}  {'calm':>7} {'attacked':>9} {'ratio':>6} {'to good clients':>16}  MiB")
    good_clients = 0.0
    names = [GOOD_CLIENTS, *(name for name in ATTACKS if name != GOOD_CLIENTS)]
    for name in names if options.only is None else [GOOD_CLIENTS, *options.only.split(",")]:
        calm = (await stage.calm(options.each)).p99
        outcome = await stage.attacked(options.each, options.seed, name)
        attacked = outcome.p99
        good_clients = good_clients or attacked
        growth, more = attacked / max(calm, 0.001), attacked / max(good_clients, 0.001)
        memory = ResidentMemory.of(pid)
        resident = "" if memory is None else f"{memory.now / 2**20:,.0f}"
        print(f"{name:>26}  {calm:7.1f} {attacked:9.1f} {growth:6.2f} {more:16.2f} {resident:>6}", flush=True)
        _print_pauses(outcome)
        if growth > MAX_GAP_GROWTH and name not in STOPPING:
            stage.ledger.fail(f"beside '{name}' the p99 gap is {growth:.2f} times the calm one")


def _print_pauses(outcome: Round) -> None:
    for pause in outcome.pauses:
        print(f"{'':>12}{describe(pause)}", flush=True)


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
    parser.add_argument("--only", metavar="NAMES", help="with --each: these attacks, comma-separated")
    parser.add_argument("--attackers", type=int, default=24, help="attacks at once")
    parser.add_argument("--witnesses", type=int, default=20, help="well-behaved streams")
    parser.add_argument("--num-pages", type=int, default=256, help="of the server's cache, 16 tokens each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("server_arguments", nargs="*", help="more flags of `eagre serve`, after --")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="eagre-chaos-") as folder:
        port, pauses = free_port(), Path(folder) / "pauses"
        flags = [*server_flags(Path(folder), options.num_pages), *options.server_arguments]
        watched = [sys.executable, "-m", "benchmarks.chaos.watched_server", str(pauses)]
        with running_server(eagre_command(port, flags, watched), f"http://127.0.0.1:{port}") as server:
            return asyncio.run(chaos(server, options, Pauses(pauses)))


if __name__ == "__main__":
    run("benchmarks.chaos", main)
