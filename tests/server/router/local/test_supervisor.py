"""A process under its supervisor: started, restarted, signalled and stopped. The program is a small stand-in."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from server.router.local import supervisor
from server.router.local.supervisor import NeverReady, Supervisor
from tests.server.conftest import eventually

WAITS_FOR_ITS_PARENT = "import sys; sys.stdin.read()"
# Notes each SIGTERM that it gets, and ends with none of them.
STUBBORN = """
import signal, sys, time
def note(*_):
    with open(sys.argv[1], "a") as log:
        log.write("x")
signal.signal(signal.SIGTERM, note)
open(sys.argv[1], "w").close()
while True:
    time.sleep(0.01)
"""


def supervise(monkeypatch: pytest.MonkeyPatch, program: str, *arguments: str) -> Supervisor:
    monkeypatch.setattr(supervisor, "COMMAND", (sys.executable, "-S", "-c", program, *arguments))
    return Supervisor("0", os.environ)


async def test_a_process_that_ends_before_it_was_ready_is_not_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    server = supervise(monkeypatch, "raise SystemExit(3)")
    with pytest.raises(NeverReady, match="replica 0 has ended with status 3 before it was ready") as raised:
        await server.run()
    assert (raised.value.status, server.pid) == (3, None)
    server.send_signal(signal.SIGHUP)  # nobody is there to get it


async def test_a_process_that_was_ready_is_restarted_until_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "FIRST_DELAY_S", 0.01)
    server = supervise(monkeypatch, WAITS_FOR_ITS_PARENT)
    running = asyncio.create_task(server.run())
    await eventually(lambda: server.pid is not None)
    server.has_been_ready = True
    first = server.pid
    server.kill()
    await eventually(lambda: server.pid not in (None, first))
    await server.stop(60)
    await running
    assert server.pid is None


async def test_one_that_does_not_end_gets_one_sigterm_and_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    server = supervise(monkeypatch, STUBBORN, str(log))
    exited = server.start()
    await eventually(log.exists)
    server.terminate()
    await eventually(lambda: log.read_text() == "x")
    await server.stop(0.05)
    assert (exited.result(), log.read_text()) == (-signal.SIGKILL, "x")


async def test_sighup_waits_until_the_process_handles_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = """
import signal, sys, time
while signal.SIGHUP not in signal.sigpending():
    time.sleep(0.01)
signal.signal(signal.SIGHUP, lambda *_: open(sys.argv[1], "w").close())
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
"""
    server = supervise(monkeypatch, program, str(tmp_path / "mark"))
    exited = server.start()
    server.send_signal(signal.SIGHUP)
    assert await exited == 0
    assert (tmp_path / "mark").exists()


async def test_a_process_that_no_thread_can_watch_is_ended_and_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "FIRST_DELAY_S", 0.01)
    server = supervise(monkeypatch, WAITS_FOR_ITS_PARENT)
    running = asyncio.create_task(server.run())
    await eventually(lambda: server.pid is not None)
    server.has_been_ready, first = True, server.pid
    run_in_background, num_failures = supervisor.run_in_background, 0

    def fail_once(*arguments: object, **options: object) -> object:
        nonlocal num_failures
        num_failures += 1
        if num_failures == 1:
            raise RuntimeError("can't start new thread")
        return run_in_background(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(supervisor, "run_in_background", fail_once)
    server.kill()
    await eventually(lambda: server.pid not in (None, first) and num_failures > 1)
    assert not running.done()
    await server.stop(5)
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system keeps no process to processors")
async def test_a_process_and_nobody_else_is_kept_to_its_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, told = os.sched_getaffinity(0), tmp_path / "told"
    program = "import os, sys; open(sys.argv[1], 'w').write(repr(sorted(os.sched_getaffinity(0))))"
    monkeypatch.setattr(supervisor, "COMMAND", (sys.executable, "-S", "-c", program, str(told)))
    server = Supervisor("0", os.environ, processors=frozenset({max(own)}))
    assert await server.start() == 0
    assert (told.read_text(), os.sched_getaffinity(0)) == (f"[{max(own)}]", own)
