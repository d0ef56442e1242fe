"""What holds the asyncio loop is caught by name, and so are the long parts of an engine's steps."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from benchmarks.chaos import watcher
from benchmarks.chaos.pauses import COLLECTOR, ENGINE, LOCK, LOOP, STEP, Pause, Pauses, longest_of_each
from benchmarks.chaos.watcher import LEAST_PAUSE_S, Watcher
from engine.timeline import Timeline
from server.cli.process import EXIT_USAGE
from tests.patience import PATIENCE_S


def hold_the_loop() -> None:
    end = time.perf_counter() + 0.02
    while time.perf_counter() < end:
        pass


async def caught(path: Path, what: str) -> Pause:
    """The longest pause of a kind once the watcher has written one."""
    for _ in range(6000):
        for pause in Pauses(path).longest(0.0, float("inf")):
            if pause.what == what:
                return pause
        await asyncio.sleep(0.01)
    raise AssertionError("the watcher saw no pause")


async def test_what_holds_the_loop_is_named(tmp_path: Path) -> None:
    path = tmp_path / "pauses"
    Watcher(asyncio.get_running_loop(), path, list, threading.get_ident()).start()
    for _ in range(100):  # on a busy machine the watcher may sleep through a time
        hold_the_loop()
        await asyncio.sleep(0.01)
        if path.exists() and b"hold_the_loop" in path.read_bytes():
            break
    else:
        raise AssertionError("the watcher did not see who held the loop")
    assert (await caught(path, LOOP)).seconds >= LEAST_PAUSE_S


async def test_the_host_parts_of_steps_are_read_once(tmp_path: Path) -> None:
    now = iter([0.0, 1.0, 1.001, 1.5, 1.501, 2.0, 2.001])
    timeline = Timeline(clock=lambda: next(now))
    timeline.schedule_began(has_work=True)
    timeline.dispatch_began()
    timeline.dispatched(lambda: False, 1, 1)
    timeline.wait_began()
    timeline.commit_began()
    timeline.commit_ended(has_work=False)
    path = tmp_path / "pauses"
    Watcher(asyncio.get_running_loop(), path, lambda: [timeline], threading.get_ident()).start()
    assert (await caught(path, ENGINE)).seconds == pytest.approx(0.5)
    assert (await caught(path, STEP)).culprit == "1 rows, 1 tokens"
    await asyncio.sleep(0.03)
    assert path.read_bytes().count(b'"engine"') == 1


async def test_a_long_garbage_collection_is_told_with_its_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "LEAST_PAUSE_S", 0.0)
    path = tmp_path / "pauses"
    Watcher(asyncio.get_running_loop(), path, list, threading.get_ident()).start()
    async with asyncio.timeout(PATIENCE_S):
        while b'"gc"' not in (path.read_bytes() if path.exists() else b""):
            gc.collect(0)
            await asyncio.sleep(0.01)
    pause = next(each for each in Pauses(path).longest(0.0, float("inf")) if each.what == COLLECTOR)
    assert pause.culprit.startswith("generation 0, ")
    assert pause.culprit.endswith("in MainThread")


def test_a_watched_server_is_started_as_any_other(tmp_path: Path) -> None:
    missing = tmp_path / "keys"
    arguments = [str(tmp_path / "pauses"), "serve", "--port", "0", "--api-key-file", str(missing)]
    program = [sys.executable, "-m", "benchmarks.chaos.watcher", *arguments]
    ended = subprocess.run(program, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == EXIT_USAGE, ended.stderr
    assert str(missing) in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_longest_of_each_kind_is_told_with_its_culprit() -> None:
    lock = Pause(LOCK, 1.0, 0.02, "worker_0 98%: json_body.py:12 read")
    engine = Pause(ENGINE, 1.01, 0.03)
    assert longest_of_each([Pause(LOOP, 1.0, 0.006, "a"), Pause(LOOP, 2.0, 0.009, "b"), lock, engine]) == [
        Pause(LOOP, 2.0, 0.009, "b"), lock, engine._replace(culprit=lock.culprit),
    ]  # fmt: skip


def test_the_longest_turn_is_the_one_that_computed_most(tmp_path: Path) -> None:
    path = tmp_path / "pauses"
    waited, computed = Pause(LOOP, 1.0, 0.5, "waited", 0.001), Pause(LOOP, 2.0, 0.1, "computed", 0.09)
    path.write_bytes(waited.to_line() + computed.to_line() + Pause(LOOP, 9.0, 1.0, "later", 1.0).to_line())
    assert Pauses(path).longest_turn(0.0, 5.0) == 0.09
    assert Pauses(path).longest(0.0, 5.0) == [waited]


def test_a_line_that_is_being_written_is_left_for_later(tmp_path: Path) -> None:
    path = tmp_path / "pauses"
    first = Pause(LOOP, 1.0, 0.5, "x")
    path.write_bytes(first.to_line() + b'{"what":"loo')
    assert Pauses(path).longest(0.0, 2.0) == [first]
    assert Pauses(path).longest(1.5, 2.0) == []
    assert Pauses(tmp_path / "none").longest(0.0, 2.0) == []
