"""Resumable streams whose replica dies, drains or is replaced: the client sees the events of an undisturbed run."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NamedTuple

import pytest

from server.cli.serve import drain
from server.http.streams.router_headers import AFTER_HEADER, FRONT_KEY_HEADER, STREAM_HEADER
from server.router.forwarding import MAX_LOSSES
from tests.fakes.engine_client import FakeEngineClient
from tests.patience import PATIENCE_S
from tests.server.conftest import RunningServer, StartServer, eventually
from tests.server.router.conftest import FRONT_KEY, RunningFront, StartFront
from tests.server.support.resumable import Follower

TEXT = "the tide comes in, é and 海 with it"
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": TEXT, "max_tokens": 60}),
    ("/v1/completions", {"prompt": TEXT, "max_tokens": 60, "n": 3}),
]


@pytest.fixture
async def slow(start_server: StartServer, start_front: StartFront) -> RunningFront:
    engines = [FakeEngineClient(is_manual=True) for _ in range(3)]
    servers = [await start_server(engine, front_key=FRONT_KEY) for engine in engines]
    return await start_front(servers, front_key=FRONT_KEY)


async def busy(front: RunningFront, but: tuple[RunningServer, ...] = ()) -> RunningServer:
    """The server that has something to do, as soon as there is one."""

    def working() -> list[RunningServer]:
        return [server for server in front.servers.values() if server.engine.running and server not in but]

    await eventually(lambda: bool(working()))
    return working()[0]


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_it_goes_on_at_the_character_on_the_same_connection(
    slow: RunningFront, path: str, body: dict[str, Any]
) -> None:
    follower = Follower(slow)  # type: ignore[arg-type]
    reading = asyncio.ensure_future(follower.begin(path, body))
    lost: tuple[RunningServer, ...] = ()
    for num_steps in (7, 11):
        server = await busy(slow, lost)
        num_before = len(follower.data)
        server.engine.step(num_steps)
        await eventually(lambda num_before=num_before: len(follower.data) > num_before)
        await server.cut_connections()
        lost += (server,)
    last = await busy(slow, lost)
    last.engine.step(99)
    await reading
    seeds = {stream.params.seed for server in slow.servers.values() for stream in server.engine.submitted}
    assert None not in seeds
    assert len(seeds) == body.get("n", 1)
    assert follower.is_done
    for index in range(body.get("n", 1)):
        assert follower.text(index) == TEXT
    assert len({chunk["id"] for chunk in follower.chunks}) == 1
    assert slow.router.num_moved == 2
    for server in slow.servers.values():
        await server.served.streams.close()


async def test_it_outlives_any_number_of_replicas_on_which_it_went_on_for_a_while(
    start_server: StartServer, start_front: StartFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.router.failover.STEADY_S", 0.0)
    engines = [FakeEngineClient(is_manual=True) for _ in range(MAX_LOSSES + 2)]
    servers = [await start_server(engine, front_key=FRONT_KEY) for engine in engines]
    front = await start_front(servers, front_key=FRONT_KEY)
    follower = Follower(front)  # type: ignore[arg-type]
    reading = asyncio.ensure_future(follower.begin("/v1/completions", BODIES[0][1]))
    lost: tuple[RunningServer, ...] = ()
    for _ in range(MAX_LOSSES + 1):
        server, num_events = await busy(front, lost), len(follower.data)
        server.engine.step(7 * (len(lost) + 1))
        await eventually(lambda seen=num_events: len(follower.data) > seen)
        await server.cut_connections()
        lost += (server,)
    (await busy(front, lost)).engine.step(99)
    await reading
    assert follower.is_done
    assert follower.text() == TEXT
    assert front.router.num_moved == MAX_LOSSES + 1
    for server in servers:
        await server.served.streams.close()


class Cut(NamedTuple):
    """A stream that was cut in its middle, while the only other server has no room for it."""

    front: RunningFront
    servers: list[RunningServer]
    full: RunningServer
    follower: Follower  # of the stream
    reading: asyncio.Future[None]
    other: Follower  # of the stream that takes the room
    beside: asyncio.Future[None]


async def cut_beside_a_full_server(start_server: StartServer, start_front: StartFront) -> Cut:
    engines = [FakeEngineClient(is_manual=True) for _ in range(2)]
    servers = [await start_server(engine, front_key=FRONT_KEY, resume_max_streams=1) for engine in engines]
    front = await start_front(servers, front_key=FRONT_KEY)
    follower, other = Follower(front), Follower(front)  # type: ignore[arg-type]
    reading = asyncio.ensure_future(follower.begin("/v1/completions", BODIES[0][1]))
    server = await busy(front)
    beside = asyncio.ensure_future(other.begin("/v1/completions", {"prompt": "another", "max_tokens": 60}))
    full = await busy(front, (server,))
    server.engine.step(7)
    await eventually(lambda: len(follower.data) >= 6)
    await server.cut_connections()
    return Cut(front, servers, full, follower, reading, other, beside)


async def test_a_server_without_room_is_waited_for_and_repeats_nothing(
    start_server: StartServer, start_front: StartFront
) -> None:
    cut = await cut_beside_a_full_server(start_server, start_front)
    await eventually(lambda: len(cut.front.router.replicas.usable) == 1)
    cut.full.engine.step(99)
    await cut.beside
    await eventually(lambda: bool(cut.full.engine.running) or cut.reading.done())
    cut.full.engine.step(99)
    await cut.reading
    assert (cut.follower.text(), cut.other.text()) == (TEXT, "another")
    assert cut.follower.is_done
    for each in cut.servers:
        await each.served.streams.close()


async def test_a_stream_waits_for_room_no_longer_than_its_patience(
    start_server: StartServer, start_front: StartFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.router.failover.PATIENCE_S", 0.2)
    monkeypatch.setattr("server.router.failover.RETRY_S", 0.05)
    cut = await cut_beside_a_full_server(start_server, start_front)
    async with asyncio.timeout(PATIENCE_S):
        await cut.reading
    assert json.loads(cut.follower.data[-1])["error"]["code"] == "replica_lost"
    cut.full.engine.step(99)
    await cut.beside
    assert cut.other.text() == "another"
    for each in cut.servers:
        await each.served.streams.close()


async def test_a_client_that_comes_back_after_its_replica_died_goes_on(slow: RunningFront) -> None:
    follower = Follower(slow)  # type: ignore[arg-type]
    reading = asyncio.ensure_future(follower.begin("/v1/completions", BODIES[0][1], 8))
    server = await busy(slow)
    server.engine.step(8)
    await reading
    await server.cut_connections()
    going_on = asyncio.ensure_future(follower.go_on())
    (await busy(slow, (server,))).engine.step(99)
    await going_on
    assert follower.is_done
    assert follower.text() == TEXT
    await follower.go_on()
    assert follower.status == 204  # nothing follows
    async with slow.http.delete(f"{slow.url}/v1/streams/{follower.stream_id}") as answer:
        assert (await answer.json())["deleted"] is True
    await follower.go_on()
    assert follower.status == 404
    for each in slow.servers.values():
        await each.served.streams.close()


async def test_a_replica_that_shuts_down_hands_its_streams_over(slow: RunningFront) -> None:
    follower = Follower(slow)  # type: ignore[arg-type]
    reading = asyncio.ensure_future(follower.begin("/v1/completions", BODIES[0][1]))
    server = await busy(slow)
    server.engine.step(5)
    await eventually(lambda: len(follower.data) >= 4)
    await drain(server.served, 0.01)
    (await busy(slow, (server,))).engine.step(99)
    await reading
    assert follower.is_done
    assert follower.text() == TEXT


async def test_a_stream_that_is_stopped_between_two_replicas_is_not_begun_again(slow: RunningFront) -> None:
    follower = Follower(slow)  # type: ignore[arg-type]
    reading = asyncio.ensure_future(follower.begin("/v1/completions", BODIES[0][1]))
    server = await busy(slow)
    server.engine.step(7)
    await eventually(lambda: bool(follower.data))
    others = [replica for replica in slow.router.replicas if slow.servers[replica.name] is not server]
    for replica in others:
        replica.is_leaving = True
    await server.cut_connections()
    await eventually(lambda: not slow.router.replicas.usable)
    async with slow.http.delete(f"{slow.url}/v1/streams/{follower.stream_id}") as answer:
        assert answer.status == 200
    for replica in others:
        replica.is_leaving = False
    async with asyncio.timeout(PATIENCE_S):
        await reading
    assert slow.router.num_moved == 0
    assert not any(each.engine.submitted for each in slow.servers.values() if each is not server)
    for each in slow.servers.values():
        await each.served.streams.close()


async def test_where_every_replica_dies_under_it_there_is_one_error(slow: RunningFront) -> None:
    follower = Follower(slow)  # type: ignore[arg-type]
    reading = asyncio.ensure_future(follower.begin("/v1/completions", BODIES[0][1]))
    lost: tuple[RunningServer, ...] = ()
    for _ in slow.servers:
        server = await busy(slow, lost)
        server.engine.step(1)
        await eventually(lambda: bool(follower.data))
        await server.cut_connections()
        lost += (server,)
    await reading
    assert [chunk["error"]["code"] for chunk in follower.chunks if "error" in chunk] == ["replica_lost"]
    for each in slow.servers.values():
        await each.served.streams.close()


async def test_what_fronts_say_means_nothing_from_clients(start_server: StartServer, start_front: StartFront) -> None:
    server = await start_server(front_key=FRONT_KEY)
    front = await start_front([server], front_key=FRONT_KEY)
    wanted = "0123456789abcdef" * 2
    body = {"prompt": TEXT, "stream": True, "resumable": True}
    claims = {STREAM_HEADER: wanted, AFTER_HEADER: "5", FRONT_KEY_HEADER: "something-that-is-guessed"}
    for address, headers in ((server, claims), (front, claims), (front, {**claims, FRONT_KEY_HEADER: FRONT_KEY})):
        async with address.http.post(address.url + "/v1/completions", json=body, headers=headers) as answer:
            assert answer.headers[STREAM_HEADER] != wanted
            assert (await answer.text()).count('"text"') > 8
    odd = {**claims, FRONT_KEY_HEADER: FRONT_KEY, STREAM_HEADER: "short"}
    async with server.http.post(server.url + "/v1/completions", json=body, headers=odd) as answer:
        assert (await answer.json())["error"]["param"] == STREAM_HEADER
    await server.served.streams.close()


async def test_streams_of_other_keys_are_unknown(start_server: StartServer, start_front: StartFront) -> None:
    keys = ("one-key-of-this-test", "two-key-of-this-test")
    server = await start_server(front_key=FRONT_KEY, api_keys=keys)
    front = await start_front([server], front_key=FRONT_KEY, api_keys=keys)
    one, two = ({"Authorization": f"Bearer {key}"} for key in keys)
    body = {"prompt": TEXT, "stream": True, "resumable": True}
    async with front.http.post(front.url + "/v1/completions", json=body, headers=one) as answer:
        address = f"{front.url}/v1/streams/{answer.headers[STREAM_HEADER]}"
        await answer.read()
    for method, headers, status in (("GET", two, 404), ("DELETE", two, 404), ("GET", one, 200), ("DELETE", one, 200)):
        async with front.http.request(method, address, headers=headers) as answer:
            assert answer.status == status
    await server.served.streams.close()
