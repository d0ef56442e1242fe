"""The quiet round: very many requests of all kinds to the whole server, over an engine that computes nothing.

    python -m benchmarks.chaos --rounds quiet --requests 100000

At ten points, when all clients have left, it prints memory, descriptors, threads, asyncio tasks, temporary folders, the
store's size and the log's bytes for each request. It fails where one of them is higher at the end than after a fifth
of the requests, beyond a margin, and where an answer has an unexpected status.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from benchmarks.chaos.attacks.everyday import KINDS, Visitor
from benchmarks.chaos.ledger import print_rows
from benchmarks.chaos.target import ADMIN_KEY, KEY
from benchmarks.serving.resources import ResidentMemory
from benchmarks.serving.server_process import free_port
from server.cli.listeners import start_sites
from server.cli.memory import freeze_gc, limit_malloc_arenas, return_freed_memory
from server.http.app import build_app, make_runner, read_keys
from server.serving.served_models import ServedModels
from server.startup.logs import set_up_logs
from server.startup.settings import ServerSettings
from server.structured_output import sandboxed_compiler
from tests.fakes.engine_client import FakeEngineClient, FakeTokenStream
from tests.fakes.text_model import FakeTextModel

PROGRAM = "benchmarks.chaos.quiet"
NUM_CLIENTS = 8
NUM_POINTS = 10
BASE_POINT = 1  # the index of the point after a fifth of the requests, with which the end is compared
STORE_BYTES = 1 << 20  # the least, so that it is full after a fifth of the requests
PATIENCE_S = 60.0
IDLE_SECONDS = 2.0  # after which grammar workers end here
RESUME_GRACE_S = 2.0
TRIM_INTERVAL_S = 1.0
REST_S = 8.0  # before a point: grammar workers end, streams are given up, freed memory goes back
# What each may grow by.
MARGINS = {
    "resident MiB": 10, "descriptors": 2, "children": 0, "threads": 2, "tasks": 2, "temporary": 0, "store KiB": 1024,
    "log B each": 64,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Point:
    """What the server has after some requests, in the order of MARGINS."""

    resident_mib: float
    descriptors: int
    children: int
    threads: int
    tasks: int
    temporary: int
    store_kib: int
    log_bytes: int  # for each request since the point before


class ForgetfulEngine(FakeEngineClient):
    """The tests' engine without its records of what it was requested to do."""

    def submit(self, *arguments: Any, **options: Any) -> FakeTokenStream:
        stream = super().submit(*arguments, **options)
        records: tuple[list[Any] | dict[str, Any], ...] = (
            self.submitted, self.aborted, self.options, self.tenants, self.lifecycle.calls,
            self.lifecycle.beside_others,
        )  # fmt: skip
        for record in records:
            record.clear()
        return stream


async def _serve(port: int, store: str) -> None:
    set_up_logs("info", "json")
    sandboxed_compiler.IDLE_SECONDS = IDLE_SECONDS
    engine = ForgetfulEngine()
    settings = ServerSettings(
        host="127.0.0.1", port=port, store=store, store_bytes=STORE_BYTES, api_keys=(f"{KEY} everybody",),
        admin_keys=(ADMIN_KEY,), resume_grace=RESUME_GRACE_S, resume_max_bytes=4 << 20, resume_max_streams=64,
    )  # fmt: skip
    served = ServedModels(settings)
    runner = make_runner(build_app(served, read_keys(settings)))
    await runner.setup()
    engine.start(asyncio.get_running_loop())
    served.first.open(engine.client, FakeTextModel().model)
    freeze_gc()  # as `eagre serve` does
    trimming = asyncio.ensure_future(return_freed_memory(TRIM_INTERVAL_S))
    await start_sites(runner, ["127.0.0.1"], port)
    await trimming


class LogVolume:
    """Bytes of the server's log for each request, by event and status, from point to point."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place = 0
        self._points: list[Counter[str]] = []

    def since(self, num_requests: int) -> int:
        """The bytes for each of the requests since the last call."""
        found = Counter[str]()
        with self._path.open("rb") as log:
            log.seek(self._place)
            for line in log:
                try:
                    event = orjson.loads(line)
                    name = f"{event['event']} {event.get('status', '')}".rstrip()
                except (ValueError, TypeError, KeyError):
                    name = "lines that are no events"
                found[name] += len(line)
            self._place = log.tell()
        self._points.append(Counter({name: num_bytes // max(1, num_requests) for name, num_bytes in found.items()}))
        return found.total() // max(1, num_requests)

    def growth(self) -> list[str]:
        """The events that take more bytes at the end than after a fifth of the requests, the most first."""
        early, end = self._points[BASE_POINT], self._points[-1]
        grown = (end - early).most_common(3)
        return [f"the log's {name}: {early[name]} bytes a request, {end[name]} at the end" for name, _ in grown]


class QuietLife:
    """The clients, and what they saw of the server."""

    def __init__(self, url: str, pid: int, folder: Path, seed: int) -> None:
        self._url, self._pid, self._folder = url, pid, folder
        self._draw = random.Random(seed)
        self._num_sent = 0
        self._log = LogVolume(folder / "log")
        self.answers: Counter[str] = Counter()
        self.failures: set[str] = set()
        self.points: list[Point] = []

    async def run(self, num_requests: int) -> None:
        headers = {"Authorization": f"Bearer {KEY}"}
        print("requests   " + "  ".join(f"{name:>12}" for name in MARGINS) + "   seconds", flush=True)
        began = time.monotonic()
        for number in range(1, NUM_POINTS + 1):
            connector = aiohttp.TCPConnector(limit=4 * NUM_CLIENTS)
            timeout = aiohttp.ClientTimeout(PATIENCE_S)
            async with aiohttp.ClientSession(headers=headers, connector=connector, timeout=timeout) as session:
                await self._wait(session)
                visitor = Visitor(self._url, session, self._draw)
                until = num_requests * number // NUM_POINTS - self._num_sent
                await asyncio.gather(*(self._send_until(visitor, until) for _ in range(NUM_CLIENTS)))
            self._num_sent += visitor.num_sent
            self.answers.update(visitor.answers)
            self.failures |= visitor.failures
            await asyncio.sleep(REST_S)
            self.points.append(point := await self._look(visitor.num_sent))
            figures = "  ".join(f"{figure:12.5g}" for figure in astuple(point))
            print(f"{self._num_sent:8}   {figures}   {time.monotonic() - began:7.0f}", flush=True)

    def growth(self) -> list[str]:
        """What is higher at the end than after a fifth of the requests."""
        early, end = astuple(self.points[BASE_POINT]), astuple(self.points[-1])
        found = [
            f"{name}: {before:g} after a fifth of the requests, {after:g} at the end"
            for (name, margin), before, after in zip(MARGINS.items(), early, end, strict=True)
            if after > before + margin
        ]
        return [*found, *self._log.growth()] if any(text.startswith("log") for text in found) else found

    async def _wait(self, session: aiohttp.ClientSession) -> None:
        for _ in range(int(PATIENCE_S / 0.2)):
            with contextlib.suppress(aiohttp.ClientConnectorError):
                async with session.get(f"{self._url}/readiness") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.2)
        raise TimeoutError("the server does not become ready")

    async def _send_until(self, visitor: Visitor, until: int) -> None:
        kinds, weights = list(KINDS), list(KINDS.values())
        while visitor.num_sent < until:
            [kind] = self._draw.choices(kinds, weights)
            try:
                await kind(visitor)
            except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
                visitor.failures.add(f"{kind.__name__}: {type(error).__name__}: {error}")

    async def _look(self, num_sent: int) -> Point:
        async with (
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as session,
            session.get(f"{self._url}/metrics") as answer,
        ):
            [tasks] = [line for line in (await answer.text()).splitlines() if line.startswith("eagre_asyncio_tasks ")]
        return self._point(int(float(tasks.split()[1])), self._log.since(num_sent))

    def _point(self, num_tasks: int, log_bytes: int) -> Point:
        process, memory = Path(f"/proc/{self._pid}"), ResidentMemory.of(self._pid)
        threads = list((process / "task").iterdir())
        return Point(
            resident_mib=0.0 if memory is None else memory.now / 2**20,
            descriptors=len(list((process / "fd").iterdir())),
            children=sum(len((thread / "children").read_text().split()) for thread in threads),
            threads=len(threads),
            tasks=num_tasks,
            temporary=len(list((self._folder / "tmp").iterdir())),
            store_kib=sum(file.stat().st_size for file in self._folder.glob("store*")) >> 10,
            log_bytes=log_bytes,
        )


def run_round(options: argparse.Namespace) -> list[str]:
    """Starts the server, sends the requests, and returns what failed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tmp").mkdir()
        port = free_port()
        command = [sys.executable, "-m", PROGRAM, str(port), str(folder / "store.db")]
        environment = {**os.environ, "TMPDIR": str(folder / "tmp")}
        with (folder / "log").open("wb") as log, subprocess.Popen(command, stderr=log, env=environment) as server:
            try:
                life = QuietLife(f"http://127.0.0.1:{port}", server.pid, folder, options.seed)
                asyncio.run(life.run(options.requests))
            finally:
                server.terminate()
    print_rows({"answers": ", ".join(f"{count:,} {kind}" for kind, count in sorted(life.answers.items()))})
    return [*sorted(life.failures), *life.growth()]


def main(arguments: Sequence[str]) -> None:
    """The server of this round, in a process of its own."""
    limit_malloc_arenas()
    port, store = arguments
    asyncio.run(_serve(int(port), store))


if __name__ == "__main__":
    main(sys.argv[1:])
