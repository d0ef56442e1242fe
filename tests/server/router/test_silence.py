"""A replica that is frozen or without power: its connections stay open, and it says nothing."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohappyeyeballs
import pytest

from server.router.replica import MOST_UNANSWERED, Replica, ReplicaState
from tests.fakes.engine_client import FakeEngineClient
from tests.server.conftest import RunningServer, StartServer, eventually
from tests.server.router.conftest import FRONT_KEY, StartFront
from tests.server.support.resumable import Follower

TEXT = "the tide comes in, é and 海 with it"


class Freezing:
    """Carries bytes between the front and a server, until it is frozen as a stopped process is."""

    def __init__(self, server: RunningServer) -> None:
        self.server = server
        self.url = ""
        self.runs = asyncio.Event()
        self.runs.set()

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = urlsplit(self.server.url)
        inner_reader, inner_writer = await asyncio.open_connection(address.hostname, address.port)
        await asyncio.gather(
            self._carry(reader, inner_writer), self._carry(inner_reader, writer), return_exceptions=True
        )

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                await self.runs.wait()
                writer.write(data)
        finally:
            await self.runs.wait()
            writer.close()


@asynccontextmanager
async def freezing(server: RunningServer) -> AsyncIterator[Freezing]:
    carrier = Freezing(server)
    listener = await asyncio.start_server(carrier.take, "127.0.0.1", 0)
    carrier.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield carrier
    finally:
        carrier.runs.set()
        listener.close()


def cut_off(carrier: Freezing, monkeypatch: pytest.MonkeyPatch) -> None:
    """The network says that there is no way to it, while the connections that it has stay open."""
    connect = aiohappyeyeballs.start_connection

    async def refuse(*, addr_infos: Any, **options: Any) -> Any:
        if urlsplit(carrier.url).port in (info[4][1] for info in addr_infos) and not carrier.runs.is_set():
            raise OSError(errno.EHOSTUNREACH, "No route to host")
        return await connect(addr_infos=addr_infos, **options)

    monkeypatch.setattr("aiohappyeyeballs.start_connection", refuse)


@pytest.mark.parametrize("has_power", [True, False])
async def test_streams_of_a_frozen_replica_move_or_end_with_one_error(
    start_server: StartServer, start_front: StartFront, monkeypatch: pytest.MonkeyPatch, has_power: bool
) -> None:
    monkeypatch.setattr("server.router.replica.HEALTH_S", 0.5)
    monkeypatch.setattr("server.router.replicas.CHECK_S", 0.02)
    engines = [FakeEngineClient(is_manual=True) for _ in range(2)]
    servers = [await start_server(engine, front_key=FRONT_KEY) for engine in engines]
    async with AsyncExitStack() as ending:
        carriers = [await ending.enter_async_context(freezing(server)) for server in servers]
        front = await start_front(carriers, front_key=FRONT_KEY)
        replicas = front.router.replicas
        names = [replica.name for replica in replicas]
        other = replicas.get(names[1])
        assert other is not None
        other.is_leaving = True
        body = {"prompt": TEXT, "max_tokens": 60}
        follower = Follower(front)
        moving = asyncio.ensure_future(follower.begin("/v1/completions", body))
        ending_early = asyncio.ensure_future(front.stream_bytes("/v1/completions", body))
        whole = asyncio.ensure_future(front.post("/v1/completions", {**body, "prompt": "answered whole"}))
        await eventually(lambda: len(engines[0].running) == 3)
        engines[0].step(6)
        await eventually(lambda: len(follower.data) >= 5)
        other.is_leaving = False
        carriers[0].runs.clear()
        if not has_power:
            cut_off(carriers[0], monkeypatch)
        await eventually(lambda: len(engines[1].running) == 2)
        engines[1].step(99)
        await moving
        assert (follower.is_done, follower.text()) == (True, TEXT)
        assert (await whole)[1]["choices"][0]["text"] == "answered whole"
        *_, last = (await ending_early).removesuffix(b"\n\n").split(b"\n\n")
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "replica_lost"
        assert [replica.name for replica in replicas.usable] == [names[1]]
        carriers[0].runs.set()
        await eventually(lambda: len(replicas.usable) == 2)  # it is there again, and what it had has ended
        await eventually(lambda: engines[0].step(1) is None and not engines[0].running)
    for server in servers:
        await server.served.streams.close()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such connections")
async def test_a_frozen_replica_whose_socket_takes_nobody_more_is_frozen_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.router.replica.HEALTH_S", 0.05)
    path = str(tmp_path / "socket")
    async with AsyncExitStack() as ending:
        listener = ending.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(path)
        listener.listen(0)  # of two connections, the second finds the queue full
        waiting = ending.enter_context(socket.socket(socket.AF_UNIX))
        waiting.connect(path)
        replica = Replica("0", f"unix:{path}")
        ending.push_async_callback(replica.close)
        for _ in range(MOST_UNANSWERED):
            await replica.check_health()
        assert (replica.state, replica.num_unanswered) == (ReplicaState.NOT_READY, MOST_UNANSWERED)
        assert "accepts nobody" in replica.detail
