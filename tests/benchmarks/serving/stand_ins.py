"""Stand-ins for servers that are compared, and for the loads on them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

from benchmarks.serving.peer_server import Peer, PeerServer
from benchmarks.serving.resident_memory import ResidentMemory
from server.cli.bench.load.report import Report
from server.cli.bench.load.trace import Arrival, Trace
from server.cli.bench.load.workload import Workload

PAIR = (Peer("Eagre", lambda port: ["eagre", str(port)], "/"), Peer("llama.cpp", lambda port: ["llama"], "/"))
SPEEDS = {"Eagre": 8.0, "llama.cpp": 4.0, "before": 4.0, "after": 8.0}  # tokens per second of each stream
PROCESSOR_TIMES = itertools.count(0.0, 1.5)  # seconds, from one look to the next


class FakeServer(PeerServer):
    @property
    def memory(self) -> ResidentMemory:
        return ResidentMemory(now=2 << 20, peak=3 << 20)

    @property
    def processor_time(self) -> float:
        return next(PROCESSOR_TIMES)

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        yield


class Bench:
    """Notes what is started and asked for."""

    def __init__(self) -> None:
        self.starts: list[str] = []
        self.loads: list[Workload] = []
        self.others: list[float] = []  # the next turns' shares; then 0

    @contextlib.contextmanager
    def started_peer(self, peer: Peer) -> Iterator[PeerServer]:
        self.starts.append(peer.name)
        memory = ResidentMemory(now=1 << 20, peak=2 << 20)
        speed = SPEEDS[peer.name]
        yield FakeServer(peer.name, f"http://{peer.name}", "stub", 1, speed / 2, speed, 0.0, memory)

    def measure(self, load: Workload) -> Report:
        self.loads.append(load)
        speed = SPEEDS[load.url.removeprefix("http://")]
        arrivals = [Arrival(1 + index / speed, 1) for index in range(load.num_output_tokens)]
        made = Trace(0.0, arrivals, arrivals[-1].time, load.num_output_tokens, num_cached_tokens=load.num_shared_tokens)
        return Report.of([made] * load.num_requests, concurrency=1, num_output_tokens=load.num_output_tokens)

    def share(self) -> float:
        return self.others.pop(0) if self.others else 0.0

    @property
    def measured(self) -> list[Workload]:
        """The loads but for those that warm up."""
        return self.loads[1::2]
