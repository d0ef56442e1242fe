"""Replicas that answer nonsense, too much or nothing, and clients that ask for too much. The replicas speak HTTP by
hand.
"""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, closing, suppress
from pathlib import Path

import aiohttp
import pytest

from server.router.health_routes import join_metrics
from server.router.records.routed_streams import RECORD_BYTES, RoutedStream, RoutedStreams
from server.router.replica import MOST_UNANSWERED, Replica, ReplicaLost, ReplicaState
from server.router.router import routing_fields
from tests.patience import PATIENCE_S
from tests.server.conftest import eventually
from tests.server.router.conftest import FRONT_KEY, RunningFront, StartFront

READY = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
EVENTS = (
    b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
END = b"0\r\n\r\n"
BODY = {"prompt": "tide", "stream": True}


class OddReplica:
    """Answers each request with the same pieces, and leaves the connection open until it is let go."""

    def __init__(self) -> None:
        self.url = ""
        self.answer: list[bytes] = [READY]
        self.ready = READY
        self.is_let_go = asyncio.Event()
        self.asked: list[str] = []  # but for readiness
        self._tasks: set[asyncio.Task[None] | None] = set()

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.current_task())
        with closing(writer), suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode()
            if path == "/readiness":
                writer.write(self.ready)
            else:
                self.asked.append(path)
                for piece in self.answer:
                    writer.write(piece)
                    await asyncio.sleep(0.01)  # so that the front reads each by itself
                await self.is_let_go.wait()

    async def close(self) -> None:
        tasks = [task for task in self._tasks if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # for the sockets to be closed


MakeFront = Callable[..., Awaitable[tuple[RunningFront, OddReplica]]]


@pytest.fixture
async def make_front(start_front: StartFront) -> AsyncIterator[MakeFront]:
    """`await make_front(**settings)`: a front before one odd replica."""
    async with AsyncExitStack() as ending:

        async def make(**settings: object) -> tuple[RunningFront, OddReplica]:
            odd = OddReplica()
            listener = await asyncio.start_server(odd.take, "127.0.0.1", 0)
            ending.callback(listener.close)
            ending.push_async_callback(odd.close)
            odd.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
            front = await start_front([odd], front_key=FRONT_KEY, **settings)  # type: ignore[list-item]
            return front, odd

        yield make


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def ask(front: RunningFront, body: object, path: str = "/v1/completions") -> list[bytes]:
    """The events of an answer, or all of it."""
    async with asyncio.timeout(PATIENCE_S), front.http.post(front.url + path, json=body) as answer:
        return (await answer.read()).removesuffix(b"\n\n").split(b"\n\n")


@pytest.mark.parametrize("body", [BODY, {**BODY, "resumable": True}])
async def test_a_stream_that_goes_on_in_nonsense_ends_with_one_error(
    make_front: MakeFront, body: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.router.replicas.CHECK_S", 0.02)
    front, odd = await make_front()
    odd.answer = [EVENTS + chunk(b"data: {}\n\n"), b"no number of bytes\r\n"]
    *before, last = await ask(front, body)
    assert set(before) == {b"data: {}"}
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "replica_lost"
    await eventually(lambda: not front.router.num_open)


async def test_events_pass_whole_however_they_come_and_are_bounded(
    make_front: MakeFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.router.proxy_response.MAX_EVENT", 1000)
    front, odd = await make_front()
    odd.answer = [EVENTS, *(chunk(piece) for piece in (b"data: a\n", b"\ndata", b": b", b"\n\ndata: c\n\n")), END]
    assert await ask(front, BODY) == [b"data: a", b"data: b", b"data: c"]
    odd.answer = [EVENTS + chunk(b"data: a\n\n"), chunk(b"x" * 600), chunk(b"x" * 600)]
    first, last = await ask(front, BODY)
    assert (first, b"replica_lost" in last, b"x" * 9 in last) == (b"data: a", True, False)


async def test_an_answer_about_readiness_that_makes_no_sense_is_none(
    make_front: MakeFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.router.replica._MAX_READINESS", 5000)
    front, odd = await make_front()
    [replica] = front.router.replicas
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
    for nonsense in (b"[" * 4000, b'"%b"' % (b"x" * 9000), b"\xff"):
        odd.ready = head + nonsense
        await replica.check_health()
        assert (replica.state, replica.detail[:8]) == (ReplicaState.NOT_READY, "no sense")
        odd.ready = READY
        await replica.check_health()
        assert replica.is_usable


def test_metrics_that_cannot_be_read_hide_none_of_the_others() -> None:
    page = join_metrics({"odd": "{{{ 5 5 5", "good": "# TYPE eagre_x gauge\neagre_x 3\n"}).decode()
    assert 'eagre_x{replica="good"} 3.0' in page


async def test_ids_that_are_too_long_or_refused_are_not_remembered(make_front: MakeFront) -> None:
    front, odd = await make_front()
    odd.is_let_go.set()
    odd.answer = [b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"]
    for thing in ("x" * 5000, "known"):
        await ask(front, {"input": "a", "previous_response_id": thing}, "/v1/responses")
        assert front.router.owners.get(thing) is None
    assert odd.asked == ["/v1/responses", "/v1/responses/known", "/v1/responses"]
    async with front.http.get(front.url + "/v1/responses/mine?stream=odd") as answer:
        assert (answer.status, front.router.owners.get("mine")) == (400, None)


def test_of_a_body_the_front_keeps_only_what_decides() -> None:
    fields = {"prompt": [1, 2], "stream": True, "resumable": None, "conversation": {"id": "conv_1", "more": [[]]}}
    assert routing_fields(fields) == {"stream": True, "conversation": "conv_1"}


async def test_streams_that_are_open_are_not_being_prepared(make_front: MakeFront) -> None:
    front, odd = await make_front(max_preparing_requests=1)
    odd.answer = [EVENTS + chunk(b"data: {}\n\n")]
    async with AsyncExitStack() as ending:
        for _ in range(3):
            answer = await ending.enter_async_context(front.http.post(front.url + "/v1/completions", json=BODY))
            assert answer.status == 200
        assert front.router.num_open == 3


def test_a_stream_for_which_there_is_never_room_displaces_no_other() -> None:
    streams = RoutedStreams(grace=60, max_bytes=3 * RECORD_BYTES, max_streams=9)

    def stream(name: str, num_bytes: int) -> RoutedStream:
        return RoutedStream(name, "", "/v1/completions", {}, b"x" * num_bytes, ())

    small, read = stream("small", 1), stream("read", 1)
    assert streams.add(small)
    assert streams.add(read)
    with streams.reading(read):
        assert not streams.add(stream("large", 2 * RECORD_BYTES))
        assert streams.get("small", "") is small
        assert streams.add(stream("medium", RECORD_BYTES // 2))
        assert streams.get("small", "") is None


async def test_a_socket_to_a_replica_that_never_answers_is_given_up(
    make_front: MakeFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    front, odd = await make_front()
    odd.answer = []
    monkeypatch.setattr("server.router.replica.HEALTH_S", 0.1)
    async with asyncio.timeout(PATIENCE_S), front.http.ws_connect(front.url + "/v1/stream") as client:
        await client.send_json({"type": "generate"})
        end = await client.receive()
    assert (end.type, end.data) == (aiohttp.WSMsgType.CLOSE, aiohttp.WSCloseCode.TRY_AGAIN_LATER)
    await eventually(lambda: not front.router.num_open)


async def test_a_front_without_descriptors_blames_no_replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def none_left(*arguments: object, **options: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    odd, path = OddReplica(), tmp_path / "socket"
    async with AsyncExitStack() as ending:
        ending.callback((await asyncio.start_unix_server(odd.take, path)).close)
        ending.push_async_callback(odd.close)
        replica = Replica("0", f"unix:{path}")
        ending.push_async_callback(replica.close)
        await replica.check_health()
        with monkeypatch.context() as patch:
            patch.setattr(asyncio.get_running_loop(), "create_unix_connection", none_left)
            await replica.check_health()
            with pytest.raises(ReplicaLost) as refusal:
                async with replica.request("GET", "/health", headers={}):
                    pass
        assert replica.is_usable
        assert not refusal.value.was_sent
        odd.is_let_go.set()
        async with replica.request("GET", "/health", headers={}) as answer:
            assert answer.status == 200


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such connections")
async def test_a_machine_that_takes_no_connection_leaves_looks_unanswered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.router.replica.CONNECT_S", 0.05)
    async with AsyncExitStack() as ending:
        listener = ending.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        waiting = ending.enter_context(socket.socket())
        waiting.connect(listener.getsockname())  # of two connections, the second finds the queue full
        replica = Replica("0", f"http://127.0.0.1:{listener.getsockname()[1]}")
        ending.push_async_callback(replica.close)
        for _ in range(MOST_UNANSWERED):
            await replica.check_health()
        assert (replica.state, replica.num_unanswered) == (ReplicaState.NOT_READY, MOST_UNANSWERED)
