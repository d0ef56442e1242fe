"""The fuzz round: random bytes at every port of a server, whose reference streams must not notice.

    python -m benchmarks.chaos --rounds fuzz --seconds 3600 --seed 7

It fails where an answer is an internal error, where a reference stream's text changes or breaks, where the asyncio
loop computes longer than MAX_TURN_S in one turn, or where pages, requests, descriptors, tasks or memory are left.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import aiohttp

from benchmarks.chaos.attackers import attackers_process
from benchmarks.chaos.leaks import when_idle
from benchmarks.chaos.ledger import Ledger, print_rows
from benchmarks.chaos.pauses import Pauses, describe
from benchmarks.chaos.reference_streams import ReferenceStream, undisturbed
from benchmarks.chaos.rounds import Stage
from benchmarks.chaos.server_flags import REFERENCE_KEY, server_flags
from benchmarks.serving.server_process import ServerProcess, free_port

MAX_TURN_S = 0.1  # of the asyncio loop, in processor time: what other processes take does not count
WARM_UP_S = 5.0
SECONDS_A_ROUND = 60.0  # between two lines of the table


class Ports:
    """The ports of a server besides that of its API, on free numbers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.metrics, self.pages = free_port(), free_port()
        self.events = free_port() if importlib.util.find_spec("msgspec") else None

    @property
    def flags(self) -> list[str]:
        pages = ["--prefix-cache-dir", str(self._folder / "pages"), "--prefix-cache-key", "chaos-key-of-page-servers"]
        flags = ["--metrics-port", str(self.metrics), *pages, "--prefix-cache-listen", f"127.0.0.1:{self.pages}"]
        return flags if self.events is None else [*flags, "--kv-events", f"tcp://127.0.0.1:{self.events}"]

    @property
    def urls(self) -> list[str]:
        numbers = [self.metrics, self.pages]  # the first one tells the state
        if self.events is not None:
            numbers += [self.events, self.events + 1]  # the second one replays
        return [f"http://127.0.0.1:{number}" for number in numbers]


async def _fuzz(server: ServerProcess, urls: Sequence[str], options: argparse.Namespace, pauses: Pauses) -> list[str]:
    streams = [ReferenceStream(index) for index in range(options.streams)]
    headers = {"Authorization": f"Bearer {REFERENCE_KEY}"}
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(headers=headers, connector=connector) as session:
        texts, calm = await undisturbed(session, server.url, streams)
        print(f"calm: gaps of {len(streams)} streams p50 {calm.quantile(0.5):.1f}, p99 {calm.quantile(0.99):.1f} ms")
        stage = Stage(server.url, session, streams, texts, options.attackers, pauses)
        await stage.attacked(WARM_UP_S, options.seed, "fuzz")
        before = await when_idle(session, urls[0], server.pid)
        left = options.seconds
        while left > 0:
            seconds = min(left, SECONDS_A_ROUND)
            seed = options.seed * 1_000_003 + int(left)
            others = [
                attackers_process(url, "fuzz", 4, seconds, seed + index, Ledger()) for index, url in enumerate(urls, 1)
            ]
            elsewhere = asyncio.gather(*others)
            now = await stage.attacked(seconds, seed, "fuzz")
            for ledger in await elsewhere:
                stage.ledger.add(ledger)
            left -= seconds
            print(
                f"{options.seconds - left:6.0f} s  {now.num_streams} streams compared, gaps p50 {now.p50:.1f}, "
                f"p99 {now.p99:.1f} ms, longest turn of the loop {1000 * now.longest_turn:.1f} ms",
                flush=True,
            )
            if now.longest_turn > MAX_TURN_S:
                stage.ledger.fail(f"the asyncio loop computed {now.longest_turn:.2f} s in one turn")
                for pause in now.pauses:
                    print(f"{'':>12}{describe(pause)}", flush=True)
        after = await when_idle(session, urls[0], server.pid)
    print_rows(stage.ledger.rows())
    return [*stage.ledger.failures, *after.leaks_since(before)]


def run_round(options: argparse.Namespace) -> list[str]:
    """Starts a server with all its ports, sends random bytes to each of them, and returns what failed."""
    with tempfile.TemporaryDirectory(prefix="eagre-chaos-") as folder:
        pauses, ports = Path(folder) / "pauses", Ports(Path(folder))
        flags = [*server_flags(Path(folder), options.num_pages), *ports.flags, *options.server_arguments]
        watched = [sys.executable, "-m", "benchmarks.chaos.watcher", str(pauses)]
        with ServerProcess.eagre(flags, program=watched) as server:
            return asyncio.run(_fuzz(server, ports.urls, options, Pauses(pauses)))
