"""The loads under which servers are measured, and the figures of their reports."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any, NamedTuple

from benchmarks.serving.server_process import ServerFailed
from server.cli.bench.load.load import Load
from server.cli.bench.load.report import Report
from server.cli.bench.load.workload import Workload

LOADS = ("decode", "prefix", "prefill")
NUM_WARM_UP_REQUESTS = 16  # at most
NUM_WARM_UP_TOKENS = 8  # of each output
DECODE_FIGURES = (
    "tok/s", "full tok/s", "TTFT p50", "TTFT p99", "gap p50", "gap p99", "gap max", "TPOT", "tok/chunk",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """A load, and which figures of its report the table shows."""

    name: str
    figures: tuple[str, ...]
    workload: Workload  # without the server and the seed

    def of(self, url: str, model: str, seed: int) -> Workload:
        return replace(self.workload, url=url, model=model, seed=seed)

    def with_options(self, **options: Any) -> ServerLoad:
        """The load with some fields of its workload replaced; options that are None change nothing."""
        given = {name: value for name, value in options.items() if value is not None}
        return replace(self, workload=replace(self.workload, **given))


def decode(concurrency: int) -> ServerLoad:
    num_requests = max(2 * concurrency, min(6 * concurrency, 48))
    workload = Workload(url="", model="", concurrency=concurrency, num_requests=num_requests)
    return ServerLoad(f"c{concurrency}", DECODE_FIGURES, workload)


def prefix() -> ServerLoad:
    workload = Workload(
        url="", model="", concurrency=8, num_requests=32, num_prompt_tokens=1024, num_shared_tokens=960,
        num_output_tokens=32,
    )  # fmt: skip
    return ServerLoad("prefix", ("requests/s", "TTFT p50", "TTFT p99", "cached tok"), workload)


def prefill(num_prompt_tokens: int = 1024) -> ServerLoad:
    workload = Workload(
        url="", model="", num_requests=8, num_prompt_tokens=num_prompt_tokens, num_output_tokens=1
    )  # fmt: skip
    return ServerLoad("prefill", ("TTFT p50", "TTFT p99"), workload)


def chosen_loads(
    kinds: Sequence[str], concurrency: Sequence[int], prefill_tokens: int = 1024, **options: Any
) -> list[ServerLoad]:
    """The loads of some kinds of LOADS, with `options` as fields of all their workloads."""
    loads = [decode(num_clients) for num_clients in concurrency if "decode" in kinds]
    loads += [prefix()] if "prefix" in kinds else []
    loads += [prefill(prefill_tokens)] if "prefill" in kinds else []
    return [load.with_options(**options) for load in loads]


def warm_up(workload: Workload) -> Workload:
    """Short requests that wake threads and touch memory before a measurement, at the concurrency of the load."""
    return replace(
        workload,
        seed=random.Random(workload.seed).getrandbits(32),
        num_requests=min(workload.concurrency, NUM_WARM_UP_REQUESTS),
        num_prompt_tokens=128,
        num_shared_tokens=0,
        num_output_tokens=NUM_WARM_UP_TOKENS,
    )


def figures_of(report: Report) -> dict[str, float]:
    """All figures of a report by name; times are in milliseconds."""
    num_good = report.num_requests - report.num_failed
    if not num_good:
        return {}
    figures = {
        "tok/s": report.tokens_per_s,
        "full tok/s": report.full_tokens_per_s,
        "requests/s": num_good / report.seconds,
        "cached tok": report.num_cached_tokens / num_good,
        "tok/chunk": report.tokens_per_chunk,
        "TPOT": None if report.tpot is None else report.tpot.mean,
    }
    if report.ttft is not None:
        figures |= {"TTFT p50": report.ttft.p50, "TTFT p99": report.ttft.p99}
    if report.itl is not None:
        figures |= {"gap p50": report.itl.p50, "gap p99": report.itl.p99, "gap max": report.itl.max}
    return {name: value for name, value in figures.items() if value is not None}


class Measurement(NamedTuple):
    """A load whose clients ran in a process of their own."""

    report: Report
    clients: float  # share of all processors that the clients had while the load ran, 0 to 1


def measure_in_subprocess(workload: Workload) -> Measurement:
    """Runs a workload in a new process: clients must not share an interpreter with the server that they measure."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_measure, workload).result()


def measure_full_rate(workload: Workload) -> tuple[float, Measurement]:
    """Tokens per second while every stream of the workload flowed; raises ServerFailed if they never did."""
    measurement = measure_in_subprocess(workload)
    report = measurement.report
    if report.num_failed:
        raise ServerFailed(f"{report.num_failed} of {report.num_requests} requests failed: {report.errors}")
    if report.full_tokens_per_s is None:
        raise ServerFailed(f"the {workload.concurrency} streams never all flowed at once; take a larger --output-len")
    return report.full_tokens_per_s, measurement


def _measure(workload: Workload) -> Measurement:
    load, start, processor = Load(workload), time.perf_counter(), time.process_time()
    asyncio.run(load.run())
    taken, passed = time.process_time() - processor, time.perf_counter() - start
    return Measurement(load.report(), taken / (passed * (os.cpu_count() or 1)))
