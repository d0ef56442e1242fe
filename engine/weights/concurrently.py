"""Jobs of a loader on all cores."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

Job = Callable[[], None]


def run_all(jobs: Sequence[Job]) -> None:
    """Runs jobs on as many threads as cores that this process may use, in about their order.

    Jobs spend their time outside of the interpreter's lock: they read files, call C++, or compute with numpy.

    Raises:
        Exception: the first, in order, that a job raised; jobs that have not begun by then are left out.
    """
    if len(jobs) == 1:
        jobs[0]()
        return
    with ThreadPoolExecutor(num_cores(), thread_name_prefix="load") as pool:
        futures = [pool.submit(job) for job in jobs]
        try:
            for future in futures:
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def num_cores() -> int:
    """Of those that this process may use, which may be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
