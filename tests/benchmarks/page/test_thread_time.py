"""What the browser's trace says of the page's thread."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.page.thread_time import Task, tasks_of, worked_between

PAGE, OTHER = 7, 8  # threads


def name_of(thread: int, name: str) -> dict[str, Any]:
    return {"name": "thread_name", "ph": "M", "pid": 1, "tid": thread, "args": {"name": name}}


def turn(thread: int, began: float, took: float, worked: float) -> dict[str, Any]:
    """Times in milliseconds of the page's clock, which began at 2 s of the trace's."""
    return {
        "name": "ThreadControllerImpl::RunTask", "ph": "X", "pid": 1, "tid": thread, "ts": 2e6 + 1e3 * began,
        "dur": 1e3 * took, "tdur": 1e3 * worked,
    }  # fmt: skip


def test_tasks_are_those_of_the_page_in_order_on_its_own_clock() -> None:
    events = [
        turn(PAGE, 30, 20, 5), turn(OTHER, 0, 90, 90), turn(PAGE, 10, 4, 4), name_of(PAGE, "CrRendererMain"),
        name_of(OTHER, "Compositor"),
    ]  # fmt: skip
    assert tasks_of(events, 2.0) == [pytest.approx(Task(10, 14, 4)), pytest.approx(Task(30, 50, 5))]
    assert tasks_of([name_of(OTHER, "Compositor"), turn(OTHER, 0, 1, 1)], 2.0) == []


def test_work_counts_by_the_part_of_a_task_that_lies_between() -> None:
    tasks = [Task(10, 14, 4), Task(30, 50, 5)]
    assert worked_between(tasks, 0, 100) == 9
    assert worked_between(tasks, 12, 34) == 2 + 1
    assert worked_between(tasks, 50, 60) == 0
