"""`eagre serve` on a host that only computes: when it ends, and how."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path

import pytest

from benchmarks.serving.server_process import free_port
from engine.interface.address import HostAddress
from engine.interface.config import EngineConfig
from engine.interface.types import HostLost, Progress
from engine.multihost.follower import Follower
from engine.multihost.leader import Leader
from engine.multihost.messages import Kind
from server.cli import follower as command
from server.cli.process import EXIT_FAILURE, EXIT_OK, EXIT_USAGE
from server.startup.settings import ServerSettings
from tests.patience import PATIENCE_S

KEY = "a-key-of-all-hosts"
ENGINE = EngineConfig(tensor_parallel=2, num_hosts=2, host_index=1, coordinator="127.0.0.1:9000", coordinator_key=KEY)

Life = Callable[[ServerSettings, Progress, Callable[[BaseException], None]], None]


async def follow(monkeypatch: pytest.MonkeyPatch, life: Life, **settings: object) -> tuple[int, list[str]]:
    lines: list[str] = []
    monkeypatch.setattr(command, "follow_model", life)
    chosen = ServerSettings(**{"models": ("a=model.gguf",), "engine": ENGINE, **settings})
    status = await asyncio.wait_for(command.follow(chosen, lines.append, lambda *step: None), PATIENCE_S)
    return status, lines


async def test_it_ends_well_with_its_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    models: list[str] = []
    assert await follow(monkeypatch, lambda settings, *_: models.append(settings.model)) == (EXIT_OK, [])
    assert models == ["model.gguf"], "the name for clients is the leader's affair"


async def test_a_leader_that_ends_well_is_not_taken_for_a_lost_one(monkeypatch: pytest.MonkeyPatch) -> None:
    address = HostAddress("127.0.0.1", free_port() - 1)
    leader = Leader(address, 2, {}, KEY)

    def lead() -> None:
        leader.gather(lambda *step: None, PATIENCE_S)
        leader.close()

    def life(_: ServerSettings, __: Progress, on_lost: Callable[[BaseException], None]) -> None:
        follower = Follower(address, 1, 2, {}, KEY, PATIENCE_S)
        follower.watch(on_lost)
        while follower.receive().kind is not Kind.END:
            pass
        threading.Event().wait(0.1)  # the end of its process takes a moment
        follower.close()

    leading = asyncio.create_task(asyncio.to_thread(lead))
    assert await follow(monkeypatch, life) == (EXIT_OK, [])
    await leading


async def test_it_ends_with_the_reason_for_which_it_cannot_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    def life(*_: object) -> None:
        raise ValueError("the leader (host 0 of 2) refuses this host: dtype is float32 there")

    status, lines = await follow(monkeypatch, life)
    assert (status, lines) == (
        EXIT_FAILURE,
        ["eagre: the leader (host 0 of 2) refuses this host: dtype is float32 there"],
    )


async def test_a_lost_leader_ends_it_although_it_waits_for_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    device = threading.Event()

    def life(_: ServerSettings, __: Progress, on_lost: Callable[[BaseException], None]) -> None:
        on_lost(HostLost("the leader is lost"))
        device.wait(2 * PATIENCE_S)

    assert await follow(monkeypatch, life) == (EXIT_FAILURE, ["eagre: the leader is lost"])
    device.set()


async def test_after_a_signal_it_computes_until_the_leader_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def life(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(0.2)
        ended.append(True)

    ended: list[bool] = []
    assert await follow(monkeypatch, life) == (EXIT_OK, [])
    assert ended


async def test_a_leader_that_does_not_end_is_not_waited_for_longer_than_its_drain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leader = threading.Event()

    def life(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        leader.wait(2 * PATIENCE_S)

    assert await follow(monkeypatch, life, shutdown_timeout=0.1) == (EXIT_OK, [])
    leader.set()


async def test_several_models_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    status, lines = await follow(monkeypatch, lambda *_: None, models=("a=x", "b=y"))
    assert status == EXIT_USAGE
    assert "several hosts compute one" in lines[0]


async def test_it_says_that_it_lives_where_a_port_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    statuses: list[int] = []

    def life(*_: object) -> None:
        for path in ("liveness", "v1/models"):
            connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
            connection.request("GET", f"/{path}")
            statuses.append(connection.getresponse().status)
            connection.close()

    assert await follow(monkeypatch, life, metrics_port=port) == (EXIT_OK, [])
    assert statuses == [200, 404]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        status, [line] = await follow(monkeypatch, life, metrics_port=taken.getsockname()[1])
    assert (status, "cannot listen on" in line) == (EXIT_USAGE, True)
