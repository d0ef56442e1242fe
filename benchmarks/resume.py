"""Streams that are cut at random places, and servers that are killed under them: is what is resumed what was asked for?

    python -m benchmarks.resume --cuts 500 --kills 20

Each stream is cut several times, over server-sent events or a WebSocket, and read on from where it stood. Every answer
is compared with that of the same request, never cut. `--kills` ends the server by SIGKILL under four streams, starts it
again on the same store, and reads them on. Exits with 1 where a character differs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.serving.server_process import eagre_command, free_port, running_server, started_server

MAX_TOKENS = 48
PROMPTS = ("Once upon a time", "Die Gezeiten", "海と月", "def tide(moon):")
NUM_SEEDS = 4  # of each prompt; reference answers are computed once


@dataclass
class Reader:
    """Reads one request, over as many connections as it takes."""

    http: aiohttp.ClientSession
    url: str
    body: dict[str, Any]
    is_socket: bool
    stream: str = ""
    place: str = ""
    is_done: bool = False
    events: list[tuple[int, str]] = field(default_factory=list)  # choice, text
    has_begun: asyncio.Event = field(default_factory=asyncio.Event)  # something has come

    async def read(self, most: int | None = None) -> None:
        """Takes up to `most` further events and cuts the connection."""
        reading = self._messages() if self.is_socket else self._events()
        num_read = 0
        async for message in reading:
            self._take(message)
            num_read += 1
            if num_read == most:
                break
        await reading.aclose()  # type: ignore[attr-defined]

    async def _events(self) -> AsyncIterator[Any]:
        if self.stream:
            asked = self.http.get(f"{self.url}/v1/streams/{self.stream}", headers={"Last-Event-ID": self.place})
        else:
            asked = self.http.post(f"{self.url}/v1/completions", json={**self.body, "stream": True})
        async with asked as response:
            response.raise_for_status()
            self.stream = self.stream or response.headers.get("X-Eagre-Stream", "none")
            rest = b""
            async for piece in response.content.iter_any():
                *blocks, rest = (rest + piece).split(b"\n\n")
                for block in blocks:
                    lines = dict(line.split(": ", 1) for line in block.decode().split("\n"))
                    if "data" in lines:
                        self.place = lines.get("id", "")
                        yield None if lines["data"] == "[DONE]" else json.loads(lines["data"])

    async def _messages(self) -> AsyncIterator[Any]:
        if self.stream:
            asked = {"type": "resume", "stream": self.stream, **({"after": self.place} if self.place else {})}
        else:
            asked = {"type": "generate", **self.body}
        async with self.http.ws_connect(f"{self.url}/v1/stream") as socket:
            await socket.send_json({**asked, "id": "a"})
            async for frame in socket:
                message = frame.json()
                self.stream = self.stream or message.get("stream", "none")
                self.place = message.get("place", "")
                yield message
                if message["type"] in ("done", "error"):
                    return

    def _take(self, message: Any) -> None:
        self.has_begun.set()
        if message is None or message.get("type") == "done":
            self.is_done = True
        elif "error" in message:
            raise RuntimeError(message["error"]["message"])
        elif "choices" in message:
            choices = message["choices"]
            self.events += [(choice["index"], choice["text"]) for choice in choices]
        elif message["type"] == "delta":
            self.events.append((message["index"], message["text"]))

    @property
    def answers(self) -> list[str]:
        """The text of each choice."""
        texts = [""] * self.body.get("n", 1)
        for choice, text in self.events:
            texts[choice] += text
        return texts


class Requests:
    """Requests with a seed, and what they give when nobody cuts them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._references: dict[str, list[str]] = {}

    def draw(self) -> dict[str, Any]:
        """A request; one in four has two answers."""
        one_of_many = {"prompt": self.random.choice(PROMPTS), "seed": self.random.randrange(NUM_SEEDS)}
        several = {"n": 2} if self.random.random() < 0.25 else {}
        return {**one_of_many, **several, "max_tokens": MAX_TOKENS, "temperature": 1.0, "ignore_eos": True}

    async def reference(self, http: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> list[str]:
        name = json.dumps(body)
        if name not in self._references:
            reader = Reader(http, url, body, is_socket=False)
            await reader.read()
            self._references[name] = reader.answers
        return self._references[name]


async def cut(requests: Requests, http: aiohttp.ClientSession, url: str, num_cuts: int) -> tuple[int, int]:
    """Streams with so many cuts together; how many streams there were, and how many came out wrong."""
    num_streams = num_wrong = 0
    while num_cuts > 0:
        body = requests.draw()
        reader = Reader(http, url, {**body, "resumable": True}, is_socket=requests.random.random() < 0.5)
        while not reader.is_done and num_cuts > 0:
            await reader.read(requests.random.randint(1, MAX_TOKENS // 2))
            num_cuts -= not reader.is_done
            await asyncio.sleep(requests.random.choice((0.0, 0.0, 0.05)))
        if not reader.is_done:
            await reader.read()
        num_streams += 1
        num_wrong += reader.answers != await requests.reference(http, url, body)
    return num_streams, num_wrong


async def begin_and_kill(requests: Requests, url: str, pid: int) -> list[Reader]:
    """Four streams of which each has been read to some place when the server is killed."""
    async with aiohttp.ClientSession() as http:
        readers = [Reader(http, url, {**requests.draw(), "resumable": True}, at % 2 == 1) for at in range(4)]
        tasks = [asyncio.ensure_future(reader.read()) for reader in readers]
        await asyncio.gather(*(reader.has_begun.wait() for reader in readers))
        await asyncio.sleep(requests.random.uniform(0.0, 0.3))
        os.kill(pid, signal.SIGKILL)
        with suppress(Exception):
            await asyncio.gather(*tasks, return_exceptions=True)
    return readers


async def read_on(requests: Requests, url: str, readers: Sequence[Reader]) -> tuple[int, int]:
    """How many of the streams were cut by the kill, and how many came out wrong."""
    num_cut = num_wrong = 0
    async with aiohttp.ClientSession() as http:
        for reader in readers:
            reader.http = http
            if not reader.is_done:
                num_cut += 1
                await reader.read()
            body = {name: value for name, value in reader.body.items() if name != "resumable"}
            num_wrong += reader.answers != await requests.reference(http, url, body)
    return num_cut, num_wrong


def kill(requests: Requests, arguments: Sequence[str], num_kills: int) -> tuple[int, int]:
    """How many streams the kills have cut, and how many came out wrong."""
    port, num_cut, num_wrong = free_port(), 0, 0
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        command = eagre_command(port, [*arguments, "--store", str(Path(folder) / "store.db")])
        readers: list[Reader] = []
        for at in range(num_kills + 1):
            with running_server(command, url) as server:
                was_cut, wrong = asyncio.run(read_on(requests, url, readers))
                num_cut, num_wrong = num_cut + was_cut, num_wrong + wrong
                if at < num_kills:
                    readers = asyncio.run(begin_and_kill(requests, url, server.pid))
    return num_cut, num_wrong


def main(given: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.resume", description="Cuts and kills streams, resumes them and compares."
    )
    parser.add_argument("--cuts", type=int, default=500)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    options = parser.parse_args(given)
    requests, arguments, failed = Requests(options.seed), ["--model", options.model], 0

    async def run_cuts(url: str) -> tuple[int, int]:
        async with aiohttp.ClientSession() as http:
            return await cut(requests, http, url, options.cuts)

    if options.cuts:
        began = time.monotonic()
        with started_server(arguments) as url:
            num_streams, wrong = asyncio.run(run_cuts(url))
        failed += wrong
        seconds = time.monotonic() - began
        print(f"{options.cuts} cuts of {num_streams} streams: {wrong} differ from the uncut answer ({seconds:.0f} s)")
    if options.kills:
        began = time.monotonic()
        num_cut, wrong = kill(requests, arguments, options.kills)
        failed += wrong
        seconds = time.monotonic() - began
        print(f"{options.kills} kills cut {num_cut} streams: {wrong} differ from the uncut answer ({seconds:.0f} s)")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
