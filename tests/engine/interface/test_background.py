"""Functions in threads of their own, some of them behind all other threads."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import weakref

import pytest

from engine.interface.background import CALM_NICE, SHORT_SWITCH_INTERVAL, run_in_background, stand_back
from engine.weights.concurrently import run_all
from tests.patience import PATIENCE_S


async def test_the_result_and_the_error_come_back() -> None:
    assert await run_in_background(lambda: threading.current_thread().name, name="tide") == "tide"
    with pytest.raises(ZeroDivisionError):
        await run_in_background(lambda: 1 // 0, name="tide")


async def test_what_a_function_held_that_failed_is_let_go_at_once() -> None:
    """A model that could not be loaded kept its weights until the garbage collector came."""

    class Weights:
        pass

    held: list[weakref.ref[Weights]] = []

    def load() -> None:
        weights = Weights()
        held.append(weakref.ref(weights))
        try:
            run_all([lambda: 1 // 0, lambda: None])
        except ZeroDivisionError as error:
            more = Weights()
            held.append(weakref.ref(more))
            raise ValueError("no such model") from error

    gc.disable()
    try:
        with pytest.raises(ValueError, match="no such model"):
            await run_in_background(load, name="tide")
        assert [reference() for reference in held] == [None, None]
    finally:
        gc.enable()


async def test_a_function_that_failed_is_let_go_with_what_it_is_bound_to() -> None:
    """Its error and the future that told of it held each other, and the function, until the garbage collector came."""

    class Model:
        def load(self) -> None:
            raise ValueError("no such model")

    model = Model()
    held = weakref.ref(model)
    gc.disable()
    try:
        loading = run_in_background(model.load, name="tide")
        del model
        with contextlib.suppress(ValueError):  # pytest would keep the error
            await loading
        del loading
        for thread in threading.enumerate():
            if thread.name == "tide":
                thread.join(PATIENCE_S)  # until it ends, it holds what it was started with
        assert held() is None
    finally:
        gc.enable()


async def test_what_the_functions_held_is_let_go_that_the_errors_of_a_group_have_come_through() -> None:
    class Weights:
        pass

    held: list[weakref.ref[Weights]] = []

    def load_part() -> None:
        weights = Weights()
        held.append(weakref.ref(weights))
        raise OSError("no such part")

    def load() -> None:
        errors: list[Exception] = []
        for _ in range(2):
            try:
                load_part()
            except OSError as error:
                errors.append(error)
        raise ExceptionGroup("no such model", [ExceptionGroup("no such parts", errors)])

    with pytest.raises(ExceptionGroup, match="no such model") as raised:
        await run_in_background(load, name="tide")
    assert [reference() for reference in held] == [None, None]
    assert len(raised.value.exceptions[0].exceptions) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities of single threads")
async def test_a_calm_thread_and_those_that_it_starts_stand_back() -> None:
    def nice() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def nice_of_both() -> tuple[int, int]:
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.append(nice()))
        thread.start()
        thread.join()
        return nice(), found[0]

    usual = nice()
    calm = max(CALM_NICE, usual)
    assert await run_in_background(nice_of_both, name="tide", is_calm=True) == (calm, calm)
    assert await run_in_background(nice_of_both, name="tide") == (usual, usual)
    assert nice() == usual


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities of single threads")
async def test_a_thread_that_stands_further_back_stays_there() -> None:
    """Of a server that was started with a lower priority the calm threads must not come before the engine's."""

    def nice_of_one_far_back() -> int:
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, 19)
        stand_back()
        return os.getpriority(os.PRIO_PROCESS, thread)

    assert await run_in_background(nice_of_one_far_back, name="tide") == 19


async def test_the_interpreter_lock_changes_hands_faster_beside_a_calm_thread() -> None:
    usual = sys.getswitchinterval()
    has_begun, may_end = threading.Event(), threading.Event()

    def wait() -> bool:
        has_begun.set()
        return may_end.wait(PATIENCE_S)

    first = run_in_background(wait, name="first", is_calm=True)
    assert has_begun.wait(PATIENCE_S)
    inside = await run_in_background(sys.getswitchinterval, name="second", is_calm=True)
    assert inside == pytest.approx(SHORT_SWITCH_INTERVAL)
    assert sys.getswitchinterval() == pytest.approx(SHORT_SWITCH_INTERVAL)  # the first thread still runs
    may_end.set()
    assert await first
    assert sys.getswitchinterval() == usual
