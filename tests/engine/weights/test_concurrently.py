"""Jobs of a loader: all are done, by several threads, and the first failure is told."""

import threading

import pytest

from engine.interface.background import run_in_background
from engine.interface.cpu import num_cores
from engine.weights.concurrently import num_threads, run_all


def test_every_job_is_done():
    done = []
    run_all([lambda number=number: done.append(number) for number in range(50)])
    assert sorted(done) == list(range(50))
    run_all([])


def test_a_single_job_needs_no_thread():
    threads = []
    run_all([lambda: threads.append(threading.current_thread())])
    assert threads == [threading.current_thread()]


def test_the_first_failure_is_raised_and_what_has_not_begun_is_left_out():
    done, failed = [], threading.Event()

    def fail(number):
        failed.set()
        raise ValueError(f"job {number}")

    def wait():
        failed.wait()
        done.append(True)

    with pytest.raises(ValueError, match="job 0"):
        run_all([lambda: fail(0), *[wait] * 5000, lambda: fail(1)])
    assert len(done) < 5000


async def test_a_load_beside_engines_uses_a_single_thread():
    def load():
        threads = set()
        run_all([lambda: threads.add(threading.current_thread())] * 50)
        return num_threads(), len(threads)

    assert await run_in_background(load, name="tide", is_narrow=True) == (1, 1)
    wanted, used = await run_in_background(load, name="tide", is_calm=True)
    assert wanted == num_cores()
    assert used <= wanted
    assert num_threads() == num_cores()
