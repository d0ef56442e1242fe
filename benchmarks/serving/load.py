"""A load in a process of its own: the clients must not share an interpreter with the server that they measure."""

from __future__ import annotations

import asyncio
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from server.command.bench.load.load import Load
from server.command.bench.load.report import Report
from server.command.bench.load.workload import Workload


def measure(workload: Workload) -> Report:
    """Runs the workload in this process.

    Raises:
        aiohttp.ClientError: the WebSockets could not be opened.
    """
    load = Load(workload)
    asyncio.run(load.run())
    return load.report()


def measure_apart(workload: Workload) -> Report:
    """As `measure`, but in a new process; needed if the server runs in this one."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure, workload).result()
