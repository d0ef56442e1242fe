"""The round `ports` of benchmarks.chaos: attacks the ports of a server beside HTTP, while streams run and clients come.

The ports are those of pages, of page events and of their replays, and that of several hosts, whose leader is a process
that waits for a host all the time. Strangers are silent, many, send garbage, messages of 600 MB, messages without end,
wrong proofs, and ask for replays that they do not read. Meanwhile every client with the key, every subscriber and in
the end the host must come through, the streams' texts stay as they are, and memory and descriptors come back.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import os
import random
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import aiohttp

from benchmarks.chaos.leaks import when_idle
from benchmarks.chaos.reference_streams import Gaps, ReferenceStream, undisturbed
from benchmarks.serving.server_process import ServerProcess, free_port
from engine.interface.address import HostAddress
from engine.kv_events import zmtp
from engine.kv_events.sockets import END
from engine.kv_transfer import peer_wire
from engine.multihost import messages
from engine.multihost.follower import Follower
from engine.multihost.leader import Leader
from engine.peer_transport.handshake import OtherClaim, Protocol, introduce

PAGE_KEY, HOST_KEY = "chaos-key-of-page-servers", "chaos-key-of-all-hosts"
NUM_STREAMS = 8
MAX_MEMORY_GROWTH = 96 << 20  # bytes
MAX_SECONDS = 5.0  # for a good client to come through
_NUM_SILENT = 300
_HELD = 600 << 20  # bytes of the message that must not be held
_NICENESS = 19


class Ports:
    """Addresses of one server, and of a leader."""

    def __init__(self, *, has_events: bool) -> None:
        self.pages, self.hosts = free_port(), free_port() - 1
        self.events = free_port() if has_events else 0

    @property
    def all(self) -> list[int]:
        events = [self.events, self.events + 1] if self.events else []
        return [self.pages, self.hosts + 1, *events]


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), MAX_SECONDS)


def _silent(port: int, draw: random.Random) -> None:
    """Many connections that say nothing."""
    with contextlib.ExitStack() as stack:
        for _ in range(_NUM_SILENT):
            stack.enter_context(connect(port))
        time.sleep(draw.random() * 3)


def _flood(port: int, draw: random.Random) -> None:
    """Connections that end at once."""
    for _ in range(draw.randint(1, 300)):
        connect(port).close()


def _garbage(port: int, draw: random.Random) -> None:
    with connect(port) as connection:
        for _ in range(draw.randint(1, 50)):
            connection.sendall(draw.randbytes(draw.randint(1, 5000)))


def _wrong_proof(port: int, draw: random.Random) -> None:
    protocol = Protocol(draw.choice([peer_wire.PROTOCOL.magic, messages.PROTOCOL.magic]), draw.choice([0, 40]))
    with connect(port) as connection:
        introduce(connection, protocol, draw.randbytes(20), bytes(protocol.claim_bytes))


def _huge_message(port: int, draw: random.Random) -> None:
    """A message of 600 MB, with and without the handshake of ZeroMQ before it."""
    with connect(port) as connection:
        if draw.random() < 0.8:
            connection.sendall(zmtp.GREETING + zmtp.ready(b"DEALER"))
        connection.sendall(bytes([2]) + _HELD.to_bytes(8, "big"))
        for _ in range(_HELD >> 20):
            connection.sendall(bytes(1 << 20))


def _endless_message(port: int, draw: random.Random) -> None:
    """Frames of a message that never ends, or topics without end."""
    with connect(port) as connection:
        connection.sendall(zmtp.GREETING + zmtp.ready(draw.choice([b"DEALER", b"SUB"])))
        frames = [b"\1\0" * 4096, *(b"\0\5\1" + index.to_bytes(4, "big") for index in range(100))]
        for _ in range(1000):
            connection.sendall(draw.choice(frames))


def _unread_replays(port: int, draw: random.Random) -> None:
    with connect(port) as connection:
        connection.sendall(zmtp.GREETING + zmtp.ready(b"DEALER"))
        for _ in range(300):
            connection.sendall(b"".join(zmtp.message(b"", bytes(8))))
        time.sleep(draw.random() * 3)


ATTACKS: tuple[Callable[[int, random.Random], None], ...] = (
    _silent, _flood, _garbage, _wrong_proof, _huge_message, _endless_message, _unread_replays,
)  # fmt: skip


def attack(ports: list[int], seconds: float, seed: int, num_attackers: int) -> None:
    """Random attacks on random ports, in a process of the lowest priority."""
    os.nice(_NICENESS)
    ends_at = time.monotonic() + seconds

    def attacker(index: int) -> None:
        draw = random.Random(seed * 1000 + index)
        while time.monotonic() < ends_at:
            with contextlib.suppress(OSError):
                draw.choice(ATTACKS)(draw.choice(ports), draw)

    with ThreadPoolExecutor(num_attackers) as threads:
        list(threads.map(attacker, range(num_attackers)))


def read_replay(port: int) -> int:
    """How many batches a subscriber gets again; raises OSError."""
    with connect(port) as connection, connection.makefile("rb") as file:
        connection.sendall(zmtp.GREETING + zmtp.ready(b"DEALER") + b"".join(zmtp.message(b"", bytes(8))))
        file.read(zmtp.GREETING_BYTES)
        bodies: list[bytes] = []
        while END not in bodies[-2:]:
            head = file.read(1)
            if not head:
                raise ConnectionResetError
            size = int.from_bytes(file.read(8 if head[0] & 2 else 1), "big")
            bodies.append(file.read(size))
        return (len(bodies) - 3) // 3  # of the rest one is the handshake's command, and two are the end's


def prove_to_pages(port: int) -> None:
    """A client with the key of pages that has another model; raises OSError where it is not told so."""
    with connect(port) as connection, contextlib.suppress(OtherClaim):
        introduce(connection, peer_wire.PROTOCOL, PAGE_KEY.encode(), bytes(peer_wire.CLAIM.size))


async def _witnesses(ports: Ports, ends_at: float, failures: list[str]) -> Counter[str]:
    """Good clients, one after the other, until the time is over; each may try again for MAX_SECONDS."""
    counts = Counter[str]()
    clients: list[tuple[str, Callable[[], object]]] = [("pages", lambda: prove_to_pages(ports.pages))]
    if ports.events:
        clients.append(("replays", lambda: read_replay(ports.events + 1)))
    while time.monotonic() < ends_at:
        for name, client in clients:
            began = time.monotonic()
            while True:
                try:
                    await asyncio.to_thread(client)
                    break
                except OSError as error:
                    counts[f"{name}, tried again"] += 1
                    if time.monotonic() - began > MAX_SECONDS:
                        failures.append(f"a good client of {name} did not come through: {error}")
                        break
            counts[name] += 1
        await asyncio.sleep(0.1)
    return counts


async def _attacked(server: ServerProcess, ports: Ports, options: argparse.Namespace) -> list[str]:
    failures, streams = list[str](), [ReferenceStream(index) for index in range(NUM_STREAMS)]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True)) as session:
        texts, calm = await undisturbed(session, server.url, streams)
        process, seconds = get_context("spawn"), float(options.seconds)
        gaps, states = Gaps(), []
        for round_seconds in (min(seconds, 10.0) / 2, seconds):  # the first touches what takes memory only when used
            attackers = process.Process(
                target=attack, args=(ports.all, round_seconds, options.seed, options.attackers), daemon=True
            )
            attackers.start()
            ends_at, gaps = time.monotonic() + round_seconds, Gaps()
            counting = asyncio.create_task(_witnesses(ports, ends_at, failures))
            while time.monotonic() < ends_at:
                got = await asyncio.gather(*(each.read(session, server.url, gaps) for each in streams))
                if got != texts:
                    failures.append("the texts of the reference streams have changed")
            counts = await counting
            await asyncio.to_thread(attackers.join)
            await asyncio.sleep(6.0)  # after which silent strangers have no place any more
            states.append(await when_idle(session, server.url, server.pid))
        before, state = states
        growth = state.resident_bytes - before.resident_bytes
        print(f"ports: good clients {dict(counts)}; gaps p99 {calm.quantile(0.99):.1f} ms calm, "
              f"{gaps.quantile(0.99):.1f} ms attacked; {before.num_descriptors} descriptors before, "
              f"{state.num_descriptors} after; memory {growth / 2**20:+.0f} MiB", flush=True)  # fmt: skip
        if growth > MAX_MEMORY_GROWTH:
            failures.append(f"memory grew by {growth >> 20} MiB")
        if state.num_descriptors > before.num_descriptors + 4:
            failures.append(f"{state.num_descriptors} descriptors are open; before there were {before.num_descriptors}")
    return failures


def run_round(options: argparse.Namespace) -> list[str]:
    """Prints what good clients got, and returns what failed."""
    ports = Ports(has_events=importlib.util.find_spec("msgspec") is not None)  # what --kv-events needs
    with tempfile.TemporaryDirectory(prefix="eagre-chaos-") as folder, ThreadPoolExecutor(2) as threads:
        flags = ["--prefix-cache-dir", str(Path(folder) / "pages"), "--prefix-cache-bytes", str(64 << 20),
                 "--prefix-cache-listen", f"127.0.0.1:{ports.pages}", "--prefix-cache-key", PAGE_KEY,
                 "--num-pages", "256", "--max-model-len", "2048"]  # fmt: skip
        if ports.events:
            flags += ["--kv-events", f"tcp://127.0.0.1:{ports.events}"]
        address = HostAddress("127.0.0.1", ports.hosts)
        leader = Leader(address, 2, {}, HOST_KEY)
        try:
            gathered = threads.submit(leader.gather, lambda stage, done, total: None, 600.0)
            with ServerProcess.eagre([*flags, *options.server_arguments]) as server:
                failures = asyncio.run(_attacked(server, ports, options))
            if gathered.done():
                return [*failures, f"the leader took a stranger for a host: {gathered.exception()}"]
            began = time.monotonic()
            Follower(address, 1, 2, {}, HOST_KEY, MAX_SECONDS).close()
            gathered.result(MAX_SECONDS)
            print(f"ports: the host has joined in {time.monotonic() - began:.2f} s", flush=True)
        finally:
            leader.close("the round is over")
    return failures
