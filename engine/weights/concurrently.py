"""Parallel execution of a loader's jobs."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from engine.interface.background import is_narrow_here
from engine.interface.cpu import num_cores

Job = Callable[[], None]


def run_all(jobs: Sequence[Job]) -> None:
    """Runs jobs on `num_threads()` threads; raises what the first, in order, raised, and skips jobs not begun by then.

    Jobs spend their time outside of the interpreter's lock: they read files, call C++, or compute with numpy.
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
    """How many threads a load may use: one for each core, or one beside engines, whose steps would wait for it."""
    return 1 if is_narrow_here() else num_cores()
