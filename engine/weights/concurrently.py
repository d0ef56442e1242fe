"""Parallel execution of a loader's jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from engine.interface.background import is_narrow_here
from engine.interface.cpu import num_cores

Job = Callable[[], None]


def run_all(jobs: Sequence[Job]) -> None:
    """Runs jobs on `num_threads()` threads, in about their order.

    Jobs spend their time outside of the interpreter's lock: they read files, call C++, or compute with numpy.

    Raises:
        Exception: the first, in order, that a job raised; jobs that have not begun by then are skipped.
    """
    if len(jobs) == 1:
        jobs[0]()
        return
    with ThreadPoolExecutor(num_threads(), thread_name_prefix="load") as pool:
        futures = [pool.submit(job) for job in jobs]
        try:
            for future in futures:
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def num_threads() -> int:
    """How many threads a load may use: one for each core, or a single one beside running engines.

    The steps of other engines wait for the slowest of their own threads, so that a load on all cores would delay every
    step.
    """
    return 1 if is_narrow_here() else num_cores()
