"""Sends very many requests of all kinds to the whole server over an engine that computes nothing: does anything grow?

    python -m benchmarks.quiet_life                     # 100,000 requests, some minutes
    python -m benchmarks.quiet_life --requests 20000 --concurrency 16

At ten points it prints memory, descriptors, threads, asyncio tasks, temporary folders, the store's size and the log's
bytes for each request. The exit status is 1 where one of them is higher at the end than it was halfway, beyond what
chance explains.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from aiohttp import web

from benchmarks.serving.command import at_least_one, new_parser, run
from engine.interface.private_folder import TEMPORARY_PREFIX
from server.cli.memory import freeze_gc, return_freed_memory
from server.http.app import build_app, make_runner, read_keys
from server.serving.served_models import ServedModels
from server.startup.logs import set_up_logs
from server.startup.settings import ServerSettings
from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.text_model import FakeTextModel

PROGRAM = "benchmarks.quiet_life"
NUM_POINTS = 10
MAX_STORED = 500  # records, so that the store is full long before the end
SHARE_THAT_LEAVES = 0.05  # clients that do not read their answer
PATIENCE_S = 60.0
# What may be added between the middle and the end.
MARGINS = {
    "resident MiB": 24, "descriptors": 4, "threads": 4, "tasks": 4, "temporary": 0, "store KiB": 1024, "log B each": 64,
}  # fmt: skip

_DEEP = b'{"prompt":' + b"[" * 400 + b"]" * 400 + b"}"
_KINDS: Sequence[tuple[float, str, Any]] = (  # how often, the path, and the body: None for GET
    (3, "/v1/completions", {"prompt": "tide", "max_tokens": 3}),
    (3, "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "stream": True}),
    (1, "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "logprobs": True, "max_tokens": 2}),
    (2, "/v1/responses", {"input": "hey", "max_output_tokens": 16}),
    (1, "/v1/responses", {"input": "hey", "max_output_tokens": 16, "stream": True, "store": False}),
    (2, "/v1/messages", {"messages": [{"role": "user", "content": "yo"}], "max_tokens": 2}),
    (1, "/v1/conversations", {"items": [{"role": "user", "content": "a"}]}),
    (1, "/v1/completions", {"prompt": "resumable", "max_tokens": 4, "stream": True, "resumable": True}),
    (2, "/tokenize", {"prompt": "tide " * 50}),
    (1, "/detokenize", {"tokens": [65, 66]}),
    (1, "/v1/embeddings", {"input": "abc"}),
    (2, "/v1/models", None),
    (1, "/health", None),
    (0.5, "/metrics", None),
    (1, "/nowhere", None),
    (1, "/v1/completions", _DEEP),
    (1, "/v1/completions", b"nonsense"),
    (0.2, "/v1/completions", orjson.dumps({"prompt": "x" * 200_000})),
)


@dataclass(frozen=True, slots=True)
class Point:
    """What the server has after some requests, in the order of MARGINS."""

    resident_mib: int
    descriptors: int
    threads: int
    tasks: int
    temporary: int
    store_kib: int
    log_bytes: int  # for each request since the point before


async def _serve(port: int, store: str) -> None:
    set_up_logs("info", "json")
    engine = FakeEngineClient()
    served = ServedModels(ServerSettings(host="127.0.0.1", port=port, store=store, store_records=MAX_STORED))
    runner = make_runner(build_app(served, read_keys(served.settings)))
    await runner.setup()
    engine.start(asyncio.get_running_loop())
    served.first.open(engine.client, FakeTextModel().model)
    freeze_gc()  # as `eagre serve` does
    trimming = asyncio.ensure_future(return_freed_memory())
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await trimming


class QuietLife:
    """The clients, and what they saw of the server."""

    def __init__(self, url: str, pid: int, folder: Path, seed: int) -> None:
        self._url, self._pid, self._folder = url, pid, folder
        self._random = random.Random(seed)
        self._num_sent = 0
        self._log_before = (0, 0)  # bytes, and requests
        self.answers: Counter[str] = Counter()
        self.points: list[Point] = []

    async def run(self, num_requests: int, concurrency: int) -> None:
        connector = aiohttp.TCPConnector(limit=concurrency)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(PATIENCE_S)) as session:
            await self._wait(session)
            print("requests   " + "  ".join(f"{name:>12}" for name in MARGINS) + "   seconds", flush=True)
            began = time.monotonic()
            for number in range(1, NUM_POINTS + 1):
                until = num_requests * number // NUM_POINTS
                await asyncio.gather(*(self._send_until(session, until) for _ in range(concurrency)))
                self.points.append(point := await self._look(session))
                figures = "  ".join(f"{figure:12}" for figure in astuple(point))
                print(f"{self._num_sent:8}   {figures}   {time.monotonic() - began:7.0f}", flush=True)

    def growth(self) -> list[str]:
        """What is higher at the end than it was halfway."""
        halfway, end = astuple(self.points[NUM_POINTS // 2 - 1]), astuple(self.points[-1])
        return [
            f"{name}: {before} halfway, {after} at the end"
            for (name, margin), before, after in zip(MARGINS.items(), halfway, end, strict=True)
            if after > before + margin
        ]

    async def _wait(self, session: aiohttp.ClientSession) -> None:
        for _ in range(int(PATIENCE_S / 0.2)):
            try:
                async with session.get(f"{self._url}/readiness") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientConnectorError:
                pass
            await asyncio.sleep(0.2)
        raise TimeoutError("the server does not become ready")

    async def _send_until(self, session: aiohttp.ClientSession, until: int) -> None:
        weights = [weight for weight, _, _ in _KINDS]
        while self._num_sent < until:
            self._num_sent += 1
            [(_, path, body)] = self._random.choices(_KINDS, weights)
            data = body if body is None or isinstance(body, bytes) else orjson.dumps(body)
            headers = {} if data is None else {"Content-Type": "application/json"}
            method = "GET" if data is None else "POST"
            try:
                async with session.request(method, self._url + path, data=data, headers=headers) as answer:
                    if self._random.random() >= SHARE_THAT_LEAVES:
                        await answer.read()
                    self.answers[str(answer.status)] += 1
            except (aiohttp.ClientError, TimeoutError) as error:
                self.answers[type(error).__name__] += 1

    async def _look(self, session: aiohttp.ClientSession) -> Point:
        async with session.get(f"{self._url}/metrics") as answer:
            [tasks] = [line for line in (await answer.text()).splitlines() if line.startswith("eagre_asyncio_tasks ")]
        return self._point(int(float(tasks.split()[1])))

    def _point(self, num_tasks: int) -> Point:
        process = Path(f"/proc/{self._pid}")
        status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines() if ":" in line)
        before, log_bytes = self._log_before, (self._folder / "log").stat().st_size
        self._log_before = (log_bytes, self._num_sent)
        return Point(
            resident_mib=int(status["VmRSS"].split()[0]) >> 10,
            descriptors=len(list((process / "fd").iterdir())),
            threads=int(status["Threads"]),
            tasks=num_tasks,
            temporary=len(list(Path(tempfile.gettempdir()).glob(f"{TEMPORARY_PREFIX}*"))),
            store_kib=sum(file.stat().st_size for file in self._folder.glob("store*")) >> 10,
            log_bytes=(log_bytes - before[0]) // max(1, self._num_sent - before[1]),
        )


def main(arguments: Sequence[str]) -> int:
    parser = new_parser(PROGRAM, __doc__)
    parser.add_argument("--requests", type=at_least_one, default=100_000)
    parser.add_argument("--concurrency", type=at_least_one, default=8)
    parser.add_argument("--port", type=at_least_one, default=9700)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--serve", metavar="STORE", help="the server itself; the command starts it")
    options = parser.parse_args(arguments)
    assert len(fields(Point)) == len(MARGINS)
    if options.serve is not None:
        asyncio.run(_serve(options.port, options.serve))
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, "-m", PROGRAM, "--port", str(options.port), "--serve", str(folder / "store.db")]
        with (folder / "log").open("wb") as log, subprocess.Popen(command, stderr=log, env={**os.environ}) as server:
            try:
                life = QuietLife(f"http://127.0.0.1:{options.port}", server.pid, folder, options.seed)
                asyncio.run(life.run(options.requests, options.concurrency))
            finally:
                server.terminate()
    print("answers: " + ", ".join(f"{count} {kind}" for kind, count in sorted(life.answers.items())))
    failures = [*life.growth(), *(["an answer with status 500"] if life.answers["500"] else [])]
    print("\n".join(failures) or "nothing grows")
    return 1 if failures else 0


if __name__ == "__main__":
    run(PROGRAM, main)
