"""The resume round: streams that are cut at random places, and servers that are killed under them, differ in no text.

Each stream is cut several times and resumed where it was, over SSE or a WebSocket. A kill ends the server with SIGKILL
under four streams; it is started again on the same store, and they are resumed.
"""

import argparse
import asyncio
import contextlib
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import orjson

from benchmarks.serving.server_process import ServerProcess
from benchmarks.serving.stream_client import StreamClient, StreamLost

MAX_TOKENS = 48
PROMPTS = ("Once upon a time", "Die Gezeiten", "海と月", "def tide(moon):")
NUM_SEEDS = 4  # of each prompt; reference answers are computed once


class Compared(NamedTuple):
    num_streams: int
    num_wrong: int


class Requests:
    """Seeded requests, and the answers that they get without a cut."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._references: dict[bytes, list[str]] = {}

    def draw(self, http: aiohttp.ClientSession, url: str, *, over_websocket: bool) -> StreamClient:
        """A resumable stream; one in four has two choices."""
        body: dict[str, Any] = {"prompt": self.random.choice(PROMPTS), "seed": self.random.randrange(NUM_SEEDS)}
        if self.random.random() < 0.25:
            body["n"] = 2
        body |= {"max_tokens": MAX_TOKENS, "temperature": 1.0, "ignore_eos": True, "resumable": True}
        return StreamClient(http, url, body, over_websocket)

    async def is_wrong(self, client: StreamClient) -> bool:
        """Whether the stream has other texts than an uncut one."""
        body = {name: value for name, value in client.body.items() if name != "resumable"}
        name = orjson.dumps(body)
        if name not in self._references:
            reference = StreamClient(client.http, client.url, body)
            await reference.read()
            self._references[name] = reference.texts
        return client.texts != self._references[name]


async def cut(requests: Requests, url: str, num_cuts: int) -> Compared:
    num_streams = num_wrong = 0
    async with aiohttp.ClientSession() as http:
        while num_cuts > 0:
            client = requests.draw(http, url, over_websocket=requests.random.random() < 0.5)
            while not client.is_done and num_cuts > 0:
                await client.read(requests.random.randint(1, MAX_TOKENS // 2))
                num_cuts -= not client.is_done
                await asyncio.sleep(requests.random.choice((0.0, 0.0, 0.05)))
            if not client.is_done:
                await client.read()
            num_streams += 1
            num_wrong += await requests.is_wrong(client)
    return Compared(num_streams, num_wrong)


async def begin_and_kill(requests: Requests, server: ServerProcess) -> list[StreamClient]:
    """Four streams of which each has been read to some position when the server is killed."""
    async with aiohttp.ClientSession() as http:
        clients = [requests.draw(http, server.url, over_websocket=number % 2 == 1) for number in range(4)]
        tasks = [asyncio.ensure_future(client.read()) for client in clients]
        while not all(client.num_events for client in clients):  # noqa: ASYNC110 - four streams that flow at once
            await asyncio.sleep(0.001)
        await asyncio.sleep(requests.random.uniform(0.0, 0.3))
        server.kill()
        for task in tasks:
            with contextlib.suppress(StreamLost):
                await task
    return clients


async def resume(requests: Requests, clients: Sequence[StreamClient]) -> Compared:
    """Reads the streams to their end that the kill has cut, and compares all."""
    num_cut = num_wrong = 0
    async with aiohttp.ClientSession() as http:
        for client in clients:
            client.http = http
            if not client.is_done:
                num_cut += 1
                await client.read()
            num_wrong += await requests.is_wrong(client)
    return Compared(num_cut, num_wrong)


def kill(requests: Requests, flags: Sequence[str], num_kills: int) -> Compared:
    found, clients = Compared(0, 0), list[StreamClient]()
    with (
        tempfile.TemporaryDirectory() as folder,
        ServerProcess.eagre([*flags, "--store", str(Path(folder) / "store.db")]) as server,
    ):
        for _ in range(num_kills):
            clients = asyncio.run(begin_and_kill(requests, server))
            server.start()
            resumed = asyncio.run(resume(requests, clients))
            found = Compared(*(one + other for one, other in zip(found, resumed, strict=True)))
    return found


def run_round(options: argparse.Namespace) -> list[str]:
    """Prints how many streams were compared, and returns what failed."""
    requests, failures = Requests(options.seed), list[str]()

    def report(what: str, began: float, num_wrong: int) -> None:
        line = f"{what}: {num_wrong} differ from the uncut answer ({time.monotonic() - began:.0f} s)"
        print(line, flush=True)
        if num_wrong:
            failures.append(line)

    if options.cuts:
        began = time.monotonic()
        with ServerProcess.eagre(options.server_arguments) as server:
            num_streams, num_wrong = asyncio.run(cut(requests, server.url, options.cuts))
        report(f"{options.cuts} cuts of {num_streams} streams", began, num_wrong)
    if options.kills:
        began = time.monotonic()
        num_streams, num_wrong = kill(requests, options.server_arguments, options.kills)
        report(f"{options.kills} kills cut {num_streams} streams", began, num_wrong)
    return failures
