"""The local replicas of a router: their start, their failures, frozen ones, and their end. The processes are fakes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
import structlog

from server.router.local import source
from server.router.local.source import EXIT_FAILURE, EXIT_USAGE, MOST_FROZEN, LocalReplicas
from server.router.local.supervisor import NeverReady
from server.router.replicas import Replicas, SourceFailed
from server.startup.settings import ServerSettings
from tests.server.conftest import eventually

NODE = frozenset({4, 5})  # the processors of a memory node


class FakeSupervisor:
    """Runs until it is stopped, or until it fails."""

    def __init__(self, name: str, environment: Mapping[str, str], processors: frozenset[int] | None) -> None:
        self.name = name
        self.environment = environment
        self.processors = processors
        self.has_been_ready = False
        self.calls: list[str] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        self.calls.append("run")
        await self.ended

    def send_signal(self, number: signal.Signals) -> None:
        self.calls.append(number.name)

    def terminate(self) -> None:
        self.calls.append("terminate")

    def kill(self) -> None:
        self.calls.append("kill")

    async def stop(self, _seconds: float) -> None:
        self.calls.append("stop")


@dataclass
class FakeReplica:
    name: str
    has_been_ready: bool = False
    num_unanswered: int = 0
    detail: str = ""


@dataclass
class Router:
    """Local replicas, and what the router knows of them."""

    source: LocalReplicas
    supervisors: dict[str, FakeSupervisor]
    replicas: dict[str, FakeReplica] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)

    def update(self, addresses: Mapping[str, str]) -> None:
        self.addresses.update(addresses)
        self.replicas = {name: FakeReplica(name) for name in addresses}

    def __iter__(self) -> Any:
        return iter(self.replicas.values())

    def start(self) -> asyncio.Task[None]:
        return asyncio.create_task(self.source.start(cast(Replicas, self)))

    async def start_ready(self) -> None:
        starting = self.start()
        await eventually(lambda: bool(self.replicas))
        for replica in self:
            replica.has_been_ready = True
        await starting

    def running(self) -> set[str]:
        return {name for name, supervisor in self.supervisors.items() if "run" in supervisor.calls}


@pytest.fixture
async def router(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    supervisors: dict[str, FakeSupervisor] = {}

    def supervise(name: str, environment: Mapping[str, str], processors: frozenset[int] | None) -> FakeSupervisor:
        return supervisors.setdefault(name, FakeSupervisor(name, environment, processors))

    monkeypatch.setattr(source, "processors_of_each", lambda num_replicas: [NODE, None, NODE][:num_replicas])
    monkeypatch.setattr(source, "Supervisor", supervise)
    monkeypatch.setattr(source, "CHECK_S", 0.001)
    monkeypatch.setattr(source, "POLL_S", 0.001)
    settings = ServerSettings(data_parallel=3, front_key="a-secret-of-fronts-alone")
    router = Router(LocalReplicas(settings, {}, tmp_path), supervisors)
    yield router
    await router.source.stop()
    for supervisor in supervisors.values():
        supervisor.ended.cancel()


async def test_the_others_start_when_the_first_is_ready(router: Router, tmp_path: Path) -> None:
    starting = router.start()
    await eventually(lambda: router.running() == {"0"})
    assert router.addresses == {str(i): f"unix:{tmp_path}/{i}.sock" for i in range(3)}
    assert not router.supervisors["0"].has_been_ready
    router.replicas["0"].has_been_ready = True
    await eventually(lambda: router.running() == {"0", "1", "2"})
    assert router.supervisors["0"].has_been_ready
    assert not starting.done()
    router.replicas["1"].has_been_ready = router.replicas["2"].has_been_ready = True
    await starting
    assert all(supervisor.has_been_ready for supervisor in router.supervisors.values())


async def test_each_is_kept_to_its_memory_node(router: Router) -> None:
    assert [supervisor.processors for supervisor in router.supervisors.values()] == [NODE, None, NODE]


@pytest.mark.parametrize(("status", "expected"), [(EXIT_USAGE, EXIT_USAGE), (137, EXIT_FAILURE)])
async def test_one_that_ends_before_it_was_ready_fails_the_start(router: Router, status: int, expected: int) -> None:
    starting = router.start()
    await eventually(lambda: router.running() == {"0"})
    router.supervisors["0"].ended.set_exception(NeverReady("0", status))
    with pytest.raises(SourceFailed, match=f"replica 0 has ended with status {status}") as raised:
        await starting
    assert raised.value.status == expected


@pytest.mark.parametrize("error", [OSError("no processes"), NeverReady("1", 1)])
async def test_supervision_that_ends_by_an_error_is_logged(router: Router, error: Exception) -> None:
    await router.start_ready()
    with structlog.testing.capture_logs() as events:
        router.supervisors["1"].ended.set_exception(error)
        await eventually(lambda: bool(events))
    assert [(event["event"], event["log_level"], event["reason"]) for event in events] == [
        ("supervision_ended", "error", str(error))
    ]


async def test_a_frozen_replica_is_killed_once(router: Router) -> None:
    await router.start_ready()
    router.replicas["2"].num_unanswered = MOST_FROZEN
    await eventually(lambda: "kill" in router.supervisors["2"].calls)
    await eventually(lambda: router.replicas["2"].num_unanswered == 0)
    assert [name for name, supervisor in router.supervisors.items() if "kill" in supervisor.calls] == ["2"]


async def test_a_replica_that_still_starts_is_not_killed(router: Router) -> None:
    starting = router.start()
    await eventually(lambda: router.running() == {"0"})
    for replica in router:
        replica.num_unanswered = MOST_FROZEN
    for _ in range(10):
        await asyncio.sleep(source.CHECK_S)
    assert router.supervisors["0"].calls == ["run"]
    starting.cancel()


async def test_reload_drain_and_stop_reach_every_replica(router: Router) -> None:
    await router.start_ready()
    await router.source.reload()
    router.source.drain()
    await router.source.stop()
    assert all(supervisor.calls == ["run", "SIGHUP", "terminate", "stop"] for supervisor in router.supervisors.values())
