"""A load in a process of its own: the clients must not share an interpreter with the server that they measure."""

from __future__ import annotations

import asyncio
import os
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import NamedTuple

from server.cli.bench.load.load import Load
from server.cli.bench.load.report import Report
from server.cli.bench.load.workload import Workload


def measure(workload: Workload) -> Report:
    """Runs the workload in this process.

    Raises:
        aiohttp.ClientError: the WebSockets could not be opened.
    """
    load = Load(workload)
    asyncio.run(load.run())
    return load.report()


class Apart(NamedTuple):
    """A load whose clients were a process of their own."""

    report: Report
    clients: float  # share of all processors that the clients had while the load ran, 0 to 1


def measure_apart(workload: Workload) -> Report:
    """As `measure`, but in a new process; needed if the server runs in this one."""
    return measure_with_clients(workload).report


def measure_with_clients(workload: Workload) -> Apart:
    """As `measure_apart`, and what the clients took of the processors."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_watched, workload).result()


def _watched(workload: Workload) -> Apart:
    start, processor = time.perf_counter(), time.process_time()
    report = measure(workload)
    taken, passed = time.process_time() - processor, time.perf_counter() - start
    return Apart(report, taken / (passed * (os.cpu_count() or 1)))
