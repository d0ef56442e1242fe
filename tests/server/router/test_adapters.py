"""Adapters behind a front: a call reaches all replicas, and one that comes later has them before it gets requests."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from engine.adapters.adapter_weights import AdapterWeights
from engine.interface.errors import ModelError
from server.router import adapters
from server.router.forwarding import WholeAnswer, ask
from server.router.replica import ProxyRequest, Replica
from tests.patience import PATIENCE_S
from tests.server.conftest import RunningServer, StartServer, eventually
from tests.server.router.conftest import RunningFront, StartFront

ADMIN = {"Authorization": "Bearer sk-of-the-operator"}
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


async def start_adapted(start_server: StartServer) -> RunningServer:
    server = await start_server(enable_lora=True, admin_keys=("sk-of-the-operator",))
    server.served.first.adapters.open(server.engine.client, 2, {})
    return server


@pytest.fixture
async def front(start_server: StartServer, start_front: StartFront) -> RunningFront:
    servers = [await start_adapted(start_server) for _ in range(2)]
    return await start_front(servers, admin_keys=("sk-of-the-operator",))


async def call(front: RunningFront, path: str, **body: Any) -> tuple[int, str]:
    async with front.http.post(front.url + path, json=body, headers=ADMIN) as response:
        return response.status, await response.text()


def names_of(server: RunningServer) -> list[str]:
    return [adapter.name for adapter in server.served.first.adapters.all]


async def test_a_call_reaches_all_replicas(front: RunningFront) -> None:
    assert (await call(front, LOAD, lora_name="a", lora_path="/a"))[0] == 200
    assert [names_of(server) for server in front.servers.values()] == [["a"], ["a"]]
    async with front.http.get(front.url + "/v1/models") as response:
        assert [entry["id"] for entry in (await response.json())["data"]] == ["fake", "a"]
    assert (await call(front, LOAD, lora_name="a", lora_path="/a"))[0] == 400  # it is there
    assert (await call(front, UNLOAD, lora_name="a"))[0] == 200
    assert (await call(front, UNLOAD, lora_name="a"))[0] == 404
    assert [names_of(server) for server in front.servers.values()] == [[], []]
    async with front.http.post(front.url + LOAD, json={"lora_name": "a", "lora_path": "/a"}) as response:
        assert response.status in (401, 404)


async def test_a_replica_that_is_started_later_has_them_before_it_gets_requests(
    front: RunningFront, start_server: StartServer
) -> None:
    for name in ("a", "b", "c"):
        assert (await call(front, LOAD, lora_name=name, lora_path=f"/{name}"))[0] == 200
    assert (await call(front, UNLOAD, lora_name="a"))[0] == 200
    assert (await call(front, LOAD, lora_name="b", lora_path="/better", load_inplace=True))[0] == 200
    assert (await call(front, LOAD, lora_name="a", lora_path="/a"))[0] == 200
    later = await start_adapted(start_server)
    await later.served.first.adapters.load("a", Path("/given at its start"))
    replica = front.router.replicas.add("2", later.url)
    await eventually(lambda: replica.is_usable)
    expected = names_of(front.servers["0"])
    assert names_of(later) == expected == ["b", "c", "a"]
    assert [str(adapter.path) for adapter in later.served.first.adapters.all] == ["/better", "/c", "/a"]


async def test_what_one_replica_refuses_none_has(front: RunningFront) -> None:
    await front.servers["1"].served.first.adapters.load("a", Path("/other"))
    status, answer = await call(front, LOAD, lora_name="a", lora_path="/a")
    assert (status, "loaded already" in answer) == (400, True)
    assert names_of(front.servers["0"]) == []
    assert (await call(front, LOAD, lora_name="b", lora_path="/bad"))[0] == 400
    assert (await call(front, LOAD, lora_name="b"))[0] == 400
    assert list(front.router.adapters.calls()) == []


async def test_what_an_adapter_has_replaced_is_there_again_where_another_replica_refuses_it(
    front: RunningFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the start, of which the front knows nothing, and one that it has loaded, whose path has a space."""
    first, second = front.servers.values()
    for server in front.servers.values():
        await server.served.first.adapters.load("given", Path("/at its/stärt"))
    assert (await call(front, LOAD, lora_name="later", lora_path="/later"))[0] == 200

    def refuse(path: Path) -> AdapterWeights:
        raise ModelError(f"{path}: it is not on this disk")

    monkeypatch.setattr(second.engine.client, "read_adapter", refuse)
    for name in ("given", "later"):
        status, _ = await call(front, LOAD, lora_name=name, lora_path="/new", load_inplace=True)
        assert status == 400
    paths = [str(adapter.path) for adapter in first.served.first.adapters.all]
    assert paths == ["/at its/stärt", "/later"]
    assert [adapter.name for adapter in second.served.first.adapters.all] == ["given", "later"]


async def test_a_replica_that_has_not_answered_is_told_again(front: RunningFront) -> None:
    gone, replica = front.servers["1"], front.router.replicas.get("1")
    assert replica is not None
    await gone.cut_connections()
    assert (await call(front, LOAD, lora_name="a", lora_path="/a"))[0] == 200
    assert not replica.is_usable
    assert names_of(front.servers["0"]) == ["a"]
    assert names_of(gone) == []


async def test_a_replica_whose_disk_does_not_answer_does_not_hold_the_others_up(
    front: RunningFront, start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    stuck = front.servers["1"].engine.client

    async def ask_impatiently(replica: Replica, proxied: ProxyRequest, seconds: float) -> WholeAnswer:
        return await ask(replica, proxied, 0.2 if replica.name == "1" else seconds)

    monkeypatch.setattr(adapters, "ask", ask_impatiently)
    monkeypatch.setattr(stuck, "read_adapter", lambda _: goes_on.wait(PATIENCE_S) and None)
    try:
        assert (await call(front, LOAD, lora_name="a", lora_path="/a"))[0] == 200
        later = await start_adapted(start_server)
        replica = front.router.replicas.add("2", later.url)
        await eventually(lambda: replica.is_usable)
        assert names_of(later) == ["a"]
    finally:
        goes_on.set()


async def test_names_that_came_and_went_are_forgotten(front: RunningFront) -> None:
    """A front that runs for months is told of many; those that replicas may have from their start are kept."""
    for name in ("step-1", "step-2"):
        assert (await call(front, LOAD, lora_name=name, lora_path="/a"))[0] == 200
        assert (await call(front, UNLOAD, lora_name=name))[0] == 200
    for server in front.servers.values():
        await server.served.first.adapters.load("given", Path("/given"))
    assert (await call(front, UNLOAD, lora_name="given"))[0] == 200
    assert [body.lora_name for body in front.router.adapters.calls()] == ["given"]


async def test_a_replica_that_was_silent_at_the_end_of_an_adapter_drops_it_too(front: RunningFront) -> None:
    replica, silent = front.router.replicas.get("1"), front.servers["1"]
    assert replica is not None
    assert (await call(front, LOAD, lora_name="a", lora_path="/a"))[0] == 200
    replica.distrust("it has just not answered")
    assert (await call(front, UNLOAD, lora_name="a"))[0] == 200
    await eventually(lambda: replica.is_usable)
    assert [names_of(front.servers["0"]), names_of(silent)] == [[], []]
    assert list(front.router.adapters.calls()) == []  # all have been told


async def test_a_replica_that_leaves_and_comes_back_has_them_too(front: RunningFront) -> None:
    replica = front.router.replicas.get("1")
    assert replica is not None
    replica.is_leaving = True
    assert (await call(front, LOAD, lora_name="a", lora_path="/a"))[0] == 200
    replica.is_leaving = False
    await eventually(lambda: replica.is_usable)
    assert [names_of(server) for server in front.servers.values()] == [["a"], ["a"]]


async def test_a_call_goes_on_whose_client_leaves(front: RunningFront, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, has_begun = threading.Event(), threading.Event()
    slow = front.servers["1"].engine.client
    read = slow.read_adapter

    def read_slowly(path: Path) -> AdapterWeights:
        has_begun.set()
        goes_on.wait(PATIENCE_S)
        return read(path)

    monkeypatch.setattr(slow, "read_adapter", read_slowly)
    try:
        calling = asyncio.create_task(call(front, LOAD, lora_name="a", lora_path="/a"))
        await eventually(has_begun.is_set)
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        await asyncio.sleep(0.1)  # the front notes that the client has left
    finally:
        goes_on.set()
    await eventually(lambda: [body.lora_name for body in front.router.adapters.calls()] == ["a", "a"])
    assert [names_of(server) for server in front.servers.values()] == [["a"], ["a"]]


async def test_an_adapter_whose_files_are_gone_keeps_no_replica_from_requests(
    front: RunningFront, start_server: StartServer
) -> None:
    assert (await call(front, LOAD, lora_name="a", lora_path="/a"))[0] == 200
    body = front.router.adapters.get("a")
    assert body is not None
    front.router.adapters.add(body.model_copy(update={"lora_path": "/bad", "lora_name": "b"}))
    later = await start_adapted(start_server)
    replica = front.router.replicas.add("2", later.url)
    await eventually(lambda: replica.is_usable)
    assert names_of(later) == ["a"]
