"""Stand-ins for servers that are compared, and for the loads on them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

from benchmarks.serving.alternation import ServerUnderTest
from benchmarks.serving.loads import Measurement
from benchmarks.serving.server_process import ServerProcess
from benchmarks.serving.table import Turn
from server.cli.bench.load.report import Report
from server.cli.bench.load.trace import Arrival, Trace
from server.cli.bench.load.workload import Workload

PAIR = (
    ServerProcess("Eagre", lambda port: ["eagre", "0"]),
    ServerProcess("llama.cpp", lambda port: ["llama"], readiness="/health"),
)
SPEEDS = {"Eagre": 8.0, "llama.cpp": 4.0, "before": 4.0, "after": 8.0}  # tokens per second of each stream
PROCESSOR_TIMES = itertools.count(0.0, 1.5)  # seconds, from one look to the next


class FakeServer(ServerUnderTest):
    def processor_time(self) -> float:
        return next(PROCESSOR_TIMES)

    def peak_memory(self) -> float:
        return 3.0


class Bench:
    """Records what is started and measured."""

    def __init__(self) -> None:
        self.starts: list[str] = []
        self.loads: list[Workload] = []
        self.others: list[float] = []  # the next turns' shares; then 0

    @contextlib.contextmanager
    def started(self, server: ServerProcess, number: int = 0) -> Iterator[ServerUnderTest]:
        self.starts.append(server.name)
        speed = SPEEDS[server.name]
        figures = {"ready, s": speed / 2, "cold start, s": speed, "RSS MiB start": 1.0}
        yield FakeServer(f"http://{server.name}", "stub", None, Turn(number, "server", server.name, figures, 0.0))

    def measure(self, load: Workload) -> Measurement:
        self.loads.append(load)
        speed = SPEEDS[load.url.removeprefix("http://")]
        arrivals = [Arrival(1 + index / speed, 1) for index in range(load.num_output_tokens)]
        made = Trace(0.0, arrivals, arrivals[-1].time, load.num_output_tokens, num_cached_tokens=load.num_shared_tokens)
        report = Report.of([made] * load.num_requests, concurrency=1, num_output_tokens=load.num_output_tokens)
        return Measurement(report, 0.0)

    def share(self) -> float:
        return self.others.pop(0) if self.others else 0.0

    @property
    def measured(self) -> list[Workload]:
        """The loads but for those that warm up."""
        return self.loads[1::2]
