"""Attacks a server while reference streams run, whose texts must not change, and checks that nothing leaks.

    python -m benchmarks.chaos                                  # a minute of all attacks
    python -m benchmarks.chaos --seconds 3600 --seed 7          # a line for each minute
    python -m benchmarks.chaos --each 10                        # each attack alone, and the gaps of the streams
    python -m benchmarks.chaos --rounds fuzz --seconds 600      # random bytes at every port
    python -m benchmarks.chaos --rounds resume --cuts 500       # streams that are cut, killed and resumed
    python -m benchmarks.chaos --rounds soak --requests 50000   # an engine alone, under random requests
    python -m benchmarks.chaos --rounds ports --seconds 30      # the ports of pages, page events and hosts
    python -m benchmarks.chaos --rounds quiet --requests 100000 # a server that grows while it serves all kinds
    python -m benchmarks.chaos --seconds 600 --open-files 64 --streams 8 --attackers 8
    python -m benchmarks.chaos --rounds pictures                # files that are dangerous to decode

The round `attacks` starts `eagre serve` with few pages, short timeouts and keys. Twenty reference streams run all the
time; their texts are compared with undisturbed ones. The attackers are a process of their own, of the lowest priority:
attackers are other machines in life, and take no cores from the server. It fails where a text differs, pages, requests,
descriptors or tasks are left, memory has grown, or an attack got a response that it must not get. With --each, times
without and with attacks alternate, and it also fails where the 99th percentile of the streams' gaps is more than twice
that of the time before; printed too is how that compares with as many well-behaved clients ("whole answer"), because
more rows take longer, whoever sends them. Below each attack are the longest pauses of the server's asyncio loop, of
its interpreter lock and of the host's part of a step, each with the thread that computed meanwhile and where it was,
the longest step and the longest garbage collection (benchmarks.chaos.watcher).

What the other rounds check is said in their modules. Exits with 1 where a check fails.
"""

import argparse
import asyncio
import importlib
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import aiohttp

from benchmarks.chaos.attackers import ATTACKS, STOPPING, attack_name
from benchmarks.chaos.leaks import ServerState, when_idle
from benchmarks.chaos.ledger import Ledger, print_rows
from benchmarks.chaos.pauses import Pauses, describe
from benchmarks.chaos.reference_streams import ReferenceStream, together, undisturbed
from benchmarks.chaos.rounds import Round, Stage
from benchmarks.chaos.server_flags import REFERENCE_KEY, server_flags
from benchmarks.serving.command import at_least_one, new_parser, run
from benchmarks.serving.resources import ResidentMemory
from benchmarks.serving.server_process import ServerProcess

PROGRAM = "benchmarks.chaos"
MAX_GAP_GROWTH = 2.0  # of the 99th percentile during an attack
GOOD_CLIENTS = "whole answer"  # the attack that is none
ROUND_SECONDS = 60.0  # between two looks at the memory
# In MiB a minute, over so many looks at least. Looks of an hour lay between 717 and 864 MiB and fell by 2.7 a minute,
# with a standard error of about one.
MAX_SLOPE = 3.0
LEAST_LOOKS = 20


async def _attack(server: ServerProcess, options: argparse.Namespace, pauses: Pauses) -> list[str]:
    url, streams = server.url, [ReferenceStream(index) for index in range(options.streams)]
    headers = {"Authorization": f"Bearer {REFERENCE_KEY}"}
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(headers=headers, connector=connector) as session:
        texts, calm = await undisturbed(session, url, streams)
        print(f"calm: gaps of {len(streams)} streams p50 {calm.quantile(0.5):.1f}, p99 {calm.quantile(0.99):.1f} ms")
        ledger = Ledger(may_be_full=options.open_files is not None)
        stage = Stage(url, session, streams, texts, options.attackers, pauses, ledger)
        # The first round touches what takes memory only when it is used, such as pages.
        await stage.attacked(min(options.seconds / 3, ROUND_SECONDS), options.seed)
        before = await when_idle(session, url, server.pid)
        await (_each(stage, options, server.pid) if options.each else _all_at_once(stage, options, server.pid))
        after = await when_idle(session, url, server.pid, since=before)
        again, _ = await together(session, url, streams)
        if again != texts:
            stage.ledger.fail("the texts of the reference streams have changed")
    _print(stage.ledger, before, after)
    return [*stage.ledger.failures, *after.leaks_since(before)]


async def _all_at_once(stage: Stage, options: argparse.Namespace, pid: int) -> None:
    """Every attack at once, with a line for each minute."""
    left, resident = options.seconds, list[float]()
    while left > 0:
        seconds = min(left, ROUND_SECONDS)
        left -= seconds
        now = await stage.attacked(seconds, options.seed)
        state = await when_idle(stage.session, stage.url, pid)
        resident.append(state.resident_bytes / 2**20)
        print(
            f"{options.seconds - left:6.0f} s  {now.num_streams} streams compared, gaps p50 {now.p50:.1f}, "
            f"p99 {now.p99:.1f} ms, {state.resident_bytes / 2**20:,.0f} MiB resident, "
            f"{state.num_descriptors} descriptors, {state.num_tasks} tasks",
            flush=True,
        )
        _print_pauses(now)
    settled = resident[len(resident) // 3 :]  # the first third has touched everything
    if len(settled) >= 3:
        slope = statistics.linear_regression(range(len(settled)), settled).slope
        print(f"resident memory grew by {slope:+.2f} MiB in each of the last {len(settled)} minutes", flush=True)
        if len(settled) >= LEAST_LOOKS and slope > MAX_SLOPE:
            stage.ledger.fail(f"memory grew by {slope:.2f} MiB a minute")


async def _each(stage: Stage, options: argparse.Namespace, pid: int) -> None:
    """Each attack alone, after a time without attacks of the same length."""
    print(f"{'p99 gap in ms during':>26}  {'calm':>7} {'attacked':>9} {'ratio':>6} {'to good clients':>16}  MiB")
    good_clients = 0.0
    names = [GOOD_CLIENTS, *(name for name in ATTACKS if name != GOOD_CLIENTS)]
    for name in [GOOD_CLIENTS, *options.only] if options.only else names:
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
            stage.ledger.fail(f"during '{name}' the p99 gap is {growth:.2f} times the calm one")


def _print_pauses(outcome: Round) -> None:
    for pause in outcome.pauses:
        print(f"{'':>12}{describe(pause)}", flush=True)


def _print(ledger: Ledger, before: ServerState, after: ServerState) -> None:
    print(f"{ledger.num_attacks:,} outcomes of attacks:")
    stats = after.stats
    print_rows(ledger.rows())
    print_rows({
        "preemptions": f"{stats['num_preemptions']:,}",
        "steps": f"{stats['num_steps']:,}",
        "pages": f"{stats['num_active_pages']} active, {stats['num_cached_pages']} cached, "
        f"{stats['num_free_pages']} free of {stats['num_pages']}",
        "descriptors": f"{before.num_descriptors} before, {after.num_descriptors} after",
        "tasks": f"{before.num_tasks} before, {after.num_tasks} after",
        "resident MiB": f"{before.resident_bytes / 2**20:,.0f} before, {after.resident_bytes / 2**20:,.0f} after",
    })  # fmt: skip


def run_attacks(options: argparse.Namespace) -> list[str]:
    """Starts a server, attacks it, and returns what failed."""
    with tempfile.TemporaryDirectory(prefix="eagre-chaos-") as folder:
        pauses = Path(folder) / "pauses"
        flags = [*server_flags(Path(folder), options.num_pages), *options.server_arguments]
        watched = [sys.executable, "-m", "benchmarks.chaos.watcher", str(pauses)]
        if options.open_files is not None:  # of the server alone: its attackers have files of their own
            watched = ["/bin/sh", "-c", f'ulimit -n {options.open_files}; exec "$0" "$@"', *watched]
        with ServerProcess.eagre(flags, program=watched) as server:
            return asyncio.run(_attack(server, options, Pauses(pauses)))


# Each is imported where it runs: the attackers' process, which imports this module too, needs no engine.
ROUNDS = {
    "attacks": None,
    "fuzz": "benchmarks.chaos.fuzz",
    "resume": "benchmarks.chaos.resume",
    "soak": "benchmarks.chaos.soak",
    "ports": "benchmarks.chaos.ports",
    "quiet": "benchmarks.chaos.quiet",
    "pictures": "benchmarks.chaos.pictures.round",
}


def run_round(name: str, options: argparse.Namespace) -> list[str]:
    module = ROUNDS[name]
    run_it = run_attacks if module is None else importlib.import_module(module).run_round
    failures: list[str] = run_it(options)
    return failures


def _attack_names(text: str) -> list[str]:
    names = [attack_name(name) for name in text.split(",")]
    every = ATTACKS | STOPPING
    if unknown := [name for name in names if name not in every]:
        raise argparse.ArgumentTypeError(
            f"no attack is called {', '.join(map(repr, unknown))}; there are {', '.join(every)}"
        )
    return names


def main(arguments: Sequence[str]) -> int:
    parser = new_parser(PROGRAM, __doc__)
    parser.add_argument("--rounds", nargs="+", choices=tuple(ROUNDS), default=["attacks"])
    parser.add_argument("--seed", type=int, default=0)
    attacks = parser.add_argument_group("attacks")
    attacks.add_argument("--seconds", type=float, default=60.0, help="of the attacks, and of the fuzz round")
    attacks.add_argument("--each", type=float, default=0.0, metavar="SECONDS", help="each attack alone for so long")
    attacks.add_argument(
        "--only", metavar="NAMES", type=_attack_names, help="with --each: these attacks, comma-separated"
    )
    attacks.add_argument("--attackers", type=at_least_one, default=24, help="attacks at once")
    attacks.add_argument("--streams", type=at_least_one, default=20, help="reference streams")
    attacks.add_argument("--num-pages", type=int, default=256, help="of the server's cache, 16 tokens each")
    attacks.add_argument("--open-files", type=at_least_one, help="limit of the server's open files")
    others = parser.add_argument_group("resume, soak, quiet and pictures")
    others.add_argument("--cuts", type=int, default=500, help="of streams that are resumed")
    others.add_argument("--kills", type=int, default=20, help="of the server, whose streams are resumed")
    others.add_argument("--requests", type=at_least_one, default=5000, help="of the soak and quiet rounds")
    others.add_argument("--pictures", type=at_least_one, default=200, help="files of the round of pictures")
    parser.add_argument("server_arguments", nargs="*", help="more flags of `eagre serve`, after --")
    options = parser.parse_args(arguments)
    if options.only and not options.each:
        parser.error("argument --only: it needs --each, which says for how many seconds each attack runs")
    failures = [failure for name in options.rounds for failure in run_round(name, options)]
    for failure in failures:
        print(f"FAILED: {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    run(PROGRAM, main)
