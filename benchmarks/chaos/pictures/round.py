"""The round `pictures`: hostile files to a server whose model sees, over an engine that computes nothing.

    python -m benchmarks.chaos --rounds pictures
    python -m benchmarks.chaos --rounds pictures --pictures 5000 --seed 7

Each file goes as a part of a chat's message from a process of its own, of the lowest priority. Files that must be read
get an answer, the others an answer or a 400 that names the part; after each of those that may end the process that
decodes, a good one is read. It fails where something else is answered, where the server has grown by more than
200 MiB, where the process that decodes holds more than its limit, where the server's asyncio loop has computed for more
than 20 ms in one turn, or where processes or descriptors are left.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import os
import random
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.chaos.ledger import print_rows
from benchmarks.chaos.pictures.cases import picture_cases
from benchmarks.serving.resources import ResidentMemory, process_tree
from server.cli.listeners import start_sites
from server.http.app import build_app, make_runner, read_keys
from server.media.decode_worker import MAX_BYTES
from server.serving.served_models import ServedModels
from server.startup.logs import set_up_logs
from server.startup.settings import ServerSettings
from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.seeing_text_model import SeeingTextModel

MAX_GROWTH = 200 << 20  # bytes, of the server's own memory
MAX_TURN_S = 0.020  # of processor time
MAX_BODY_BYTES = 16 << 20
INTERVAL_S = 0.01
NUM_AT_ONCE = 4
PART = "messages[0].content[1]"
_NICENESS = 19
_PATIENCE_S = 300.0


@dataclass(slots=True)
class Outcomes:
    """What was answered, and what should not have been."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Watch:
    """The most that the server has taken meanwhile."""

    resident: int = 0  # bytes, of the server
    decoder: int = 0  # bytes, of the processes that decode
    longest_turn: float = 0.0  # seconds of processor time between two looks

    async def run(self) -> None:
        own, last = os.getpid(), time.thread_time()
        while True:
            await asyncio.sleep(INTERVAL_S)
            now = time.thread_time()
            self.longest_turn = max(self.longest_turn, now - last)
            self._look(own)
            last = time.thread_time()

    def _look(self, own: int) -> None:
        for pid in process_tree(own):
            with suppress(OSError):  # it has just ended
                memory = ResidentMemory.of(pid)
                if memory is None:
                    continue
                if pid == own:
                    self.resident = max(self.resident, memory.now)
                elif b"decode_worker" in Path("/proc", str(pid), "cmdline").read_bytes():
                    self.decoder = max(self.decoder, memory.peak)


def run_round(options: argparse.Namespace) -> list[str]:
    """Sends the files, and returns what failed."""
    return asyncio.run(_run(options.pictures, options.seed))


async def _run(count: int, seed: int) -> list[str]:
    set_up_logs("warning", "console")
    engine = FakeEngineClient(max_model_len=1 << 16)
    served = ServedModels(ServerSettings(host="127.0.0.1", max_body_bytes=MAX_BODY_BYTES))
    runner = make_runner(build_app(served, read_keys(served.settings)))
    await runner.setup()
    await start_sites(runner, ["127.0.0.1"], 0)
    engine.start(asyncio.get_running_loop())
    served.first.open(engine.client, SeeingTextModel().model)
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    loop, watch = asyncio.get_running_loop(), Watch()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        await loop.run_in_executor(pool, _send, url, 8, seed)  # what is loaded with the first pictures is no growth
        before, num_descriptors = ResidentMemory.of(os.getpid()), _num_descriptors()
        watching = asyncio.create_task(watch.run())
        outcomes = await loop.run_in_executor(pool, _send, url, count, seed)
        watching.cancel()
    left = _num_descriptors() - num_descriptors
    await runner.cleanup()
    print_rows({name: f"{number:,}" for name, number in outcomes.counts.most_common()})
    if before is None:  # not Linux
        return outcomes.failures
    growth = watch.resident - before.now
    print_rows({
        "server's growth": f"{growth / 2**20:,.0f} MiB",
        "process that decodes": f"{watch.decoder / 2**20:,.0f} MiB",
        "longest turn of the loop": f"{watch.longest_turn * 1000:.1f} ms of processor time",
    })  # fmt: skip
    for is_wrong, words in (
        (growth > MAX_GROWTH, f"the server has grown by {growth / 2**20:,.0f} MiB"),
        (watch.decoder > MAX_BYTES, f"the process that decodes has held {watch.decoder / 2**20:,.0f} MiB"),
        (watch.longest_turn > MAX_TURN_S, f"the loop has computed for {watch.longest_turn * 1000:.1f} ms in one turn"),
        (left > 2, f"{left} descriptors are left"),
        (len(process_tree(os.getpid())) > 2, "processes are left"),  # 2: of multiprocessing's own
    ):
        if is_wrong:
            outcomes.failures.append(words)
    return outcomes.failures


def _num_descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0


def _send(url: str, count: int, seed: int) -> Outcomes:
    os.nice(_NICENESS)
    return asyncio.run(send_pictures(url, count, seed))


async def send_pictures(url: str, count: int, seed: int) -> Outcomes:
    """Sends so many files, a few at once, and judges the answers."""
    # All are made before the first connection: one that is silent meanwhile would be closed.
    outcomes, cases = Outcomes(), iter(list(picture_cases(random.Random(seed), count)))
    (good,) = picture_cases(random.Random(seed), 1)

    async def client(session: aiohttp.ClientSession) -> None:
        for case in cases:
            status, answer = await _ask(session, url, case.content)
            words = f"{case.name} ({len(case.content)} bytes, seed {seed}): {status} {answer}"
            outcomes.counts[f"status {status}"] += 1
            if status == 400:
                error = answer["error"]
                is_right = not case.is_good and error["param"] == PART and PART in error["message"]
            else:
                is_right = status == 200 and case.is_good is not False
            if not is_right:
                outcomes.failures.append(words)
            if case.is_good is None and (await _ask(session, url, good.content))[0] != 200:
                outcomes.failures.append(f"after {case.name} a good picture is refused")

    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(_PATIENCE_S)) as session:
        await asyncio.gather(*(client(session) for _ in range(NUM_AT_ONCE)))
    return outcomes


async def _ask(session: aiohttp.ClientSession, url: str, content: bytes) -> tuple[int, dict[str, Any]]:
    data = "data:image/png;base64," + base64.b64encode(content).decode()
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": data}}]
    body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 1}
    async with session.post(url + "/v1/chat/completions", json=body) as response:
        return response.status, await response.json()
