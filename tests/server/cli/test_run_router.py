"""The run of a router over a source of replicas, which here starts nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence

import pytest

from server.cli.process import EXIT_OK, EXIT_USAGE
from server.cli.router import run_router
from server.router.replicas import Replicas, SourceFailed
from server.startup.settings import ServerSettings
from tests.server.conftest import eventually

SETTINGS = ServerSettings(host="127.0.0.1", port=0)


class Source:
    """Notes what the router asks of it."""

    description = "2 replicas"

    def __init__(self, error: Exception | None = None, signals: Sequence[signal.Signals] = (signal.SIGTERM,)) -> None:
        self.calls: list[str] = []
        self._error = error
        self._signals = signals

    async def start(self, replicas: Replicas) -> None:
        self.calls.append("start")
        for number in self._signals:
            os.kill(os.getpid(), number)
            await asyncio.sleep(0.01)
            while number is signal.SIGHUP and "reload" not in self.calls:
                await asyncio.sleep(0.01)
        if signal.SIGTERM in self._signals:
            await asyncio.Event().wait()  # until it is cancelled
        if self._error is not None:
            raise self._error

    async def reload(self) -> None:
        self.calls.append("reload")

    def drain(self) -> None:
        if "drain" not in self.calls:
            self.calls.append("drain")

    async def stop(self) -> None:
        self.calls.append("stop")


async def run(source: Source, settings: ServerSettings = SETTINGS) -> tuple[int, list[str]]:
    lines: list[str] = []
    return await run_router(source, settings, lines.append), lines


async def test_replicas_are_started_reloaded_drained_and_stopped() -> None:
    source = Source(signals=(signal.SIGHUP, signal.SIGTERM))
    status, lines = await run(source)
    assert (status, source.calls) == (EXIT_OK, ["start", "reload", "drain", "stop"])
    assert lines == []  # the signal came before its start had ended


async def test_it_says_where_it_is_once_the_replicas_are_ready() -> None:
    source = Source(signals=())
    lines: list[str] = []
    running = asyncio.create_task(run_router(source, SETTINGS, lines.append))
    await eventually(lambda: bool(lines))
    os.kill(os.getpid(), signal.SIGTERM)
    status = await running
    [line] = lines
    assert (status, source.calls) == (EXIT_OK, ["start", "drain", "stop"])
    assert line.startswith("Eagre serves 2 replicas; open http://127.0.0.1:")


@pytest.mark.parametrize("status", [1, 2])
async def test_replicas_that_cannot_be_started_end_it_with_their_status(status: int) -> None:
    source = Source(SourceFailed("replica 0 has ended", status), signals=())
    assert await run(source) == (status, ["eagre: replica 0 has ended"])
    assert source.calls == ["start", "drain", "stop"]


async def test_where_it_cannot_listen_it_starts_nothing() -> None:
    source = Source()
    status, [line] = await run(source, ServerSettings(host="a..b", port=0))
    assert (status, "cannot listen on a..b:0" in line, source.calls) == (EXIT_USAGE, True, [])
