"""How hosts find each other and what they must have alike, without JAX."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing, contextmanager, suppress

import pytest

from benchmarks.serving.server_process import free_port
from engine.interface.address import HostAddress
from engine.interface.types import EngineError, HostLost
from engine.multihost.follower import Follower
from engine.multihost.leader import Leader
from engine.multihost.messages import PROTOCOL, Kind, frame, pack_facts
from engine.peer_transport import handshake, listener
from engine.peer_transport.handshake import GREETING_BYTES
from tests.patience import PATIENCE_S

KEY = "a-key-of-all-hosts"
FACTS = {"the version of Eagre": "1", "max_num_seqs": "64"}


# The leader, the end of its gathering, and what makes a follower in a thread.
Gathering = tuple[Leader, Future[None], Callable[..., Future[Follower]]]


def silent(stage: str, done: int, total: int) -> None:
    """Nobody waits for the progress."""


def free_address() -> HostAddress:
    return HostAddress("127.0.0.1", free_port() - 1)


@contextmanager
def gathering(num_hosts: int) -> Iterator[Gathering]:
    address = free_address()
    leader = Leader(address, num_hosts, FACTS, KEY)
    with ThreadPoolExecutor() as threads:

        def join(index: int, facts: dict[str, str] | None = None, key: str = KEY) -> Future[Follower]:
            return threads.submit(Follower, address, index, num_hosts, facts or FACTS, key, PATIENCE_S)

        try:
            yield leader, threads.submit(leader.gather, silent, PATIENCE_S), join
        finally:
            leader.close("the test is over")


def test_hosts_join_settle_on_the_fewest_pages_and_hear_every_message_in_order() -> None:
    with gathering(3) as (leader, gathered, join):
        followers = [future.result(PATIENCE_S) for future in (join(1), join(2))]
        gathered.result(PATIENCE_S)
        with ThreadPoolExecutor() as threads:
            settled = [threads.submit(followers[i].settle, {"platform": "cpu"}, 30 + i) for i in range(2)]
            assert leader.settle({"platform": "cpu"}, 40) == 30
            assert [future.result(PATIENCE_S) for future in settled] == [30, 30]
        with ThreadPoolExecutor() as threads:
            begun = [threads.submit(follower.become_ready) for follower in followers]
            leader.await_ready()
            for future in begun:
                future.result(PATIENCE_S)
        for content in (b"1", b"2"):
            leader.broadcast(Kind.STEP, content)
        with ThreadPoolExecutor() as threads:
            closed = threads.submit(leader.close)
            for follower in followers:
                received = [follower.receive() for _ in range(3)]
                assert received == [(Kind.STEP, b"1"), (Kind.STEP, b"2"), (Kind.END, b"")]
                follower.close()
            closed.result(PATIENCE_S)
        with pytest.raises(EngineError, match="have been let go"):
            leader.watch(lambda error: None)


@pytest.mark.parametrize(
    ("index", "facts", "message"),
    [
        (1, {**FACTS, "max_num_seqs": "32"}, "refuses this host: max_num_seqs is 32 there and 64 on the leader"),
        (1, {"max_num_seqs": "64"}, "the version of Eagre is None there and 1 on the leader"),
        (7, FACTS, "host_index is 7 there, and the leader has hosts from 1 to 1"),
    ],
)
def test_a_host_that_differs_is_refused_by_name_and_may_come_again(
    index: int, facts: dict[str, str], message: str
) -> None:
    with gathering(2) as (_, gathered, join):
        with pytest.raises(ValueError, match=message):
            join(index, facts).result(PATIENCE_S)
        assert not gathered.done()
        join(1).result(PATIENCE_S).close()
        gathered.result(PATIENCE_S)


def test_no_two_hosts_have_one_index_and_a_stranger_is_none() -> None:
    with gathering(3) as (leader, gathered, join):
        rivals = [join(1), join(1)]
        stranger = socket.create_connection((leader.address.host, leader.address.plan_port))
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        said = b""
        with suppress(ConnectionResetError):
            while piece := stranger.recv(4096):
                said += piece
        assert len(said) <= GREETING_BYTES, "it is told nothing but the leader's nonce"
        stranger.close()
        refused = next(as_completed(rivals, PATIENCE_S))  # whichever came later: the other one waits for host 2
        rivals.remove(refused)
        with pytest.raises(ValueError, match="host_index 1 has joined already"):
            refused.result()
        second = join(2).result(PATIENCE_S)
        gathered.result(PATIENCE_S)
        for follower in (rivals[0].result(PATIENCE_S), second):
            follower.close()


def connect(leader: Leader) -> socket.socket:
    connection = socket.create_connection((leader.address.host, leader.address.plan_port))
    connection.settimeout(PATIENCE_S)
    return connection


def everything(connection: socket.socket) -> bytes:
    """What the leader sends until it ends the connection."""
    said = b""
    with suppress(ConnectionResetError):
        while piece := connection.recv(4096):
            said += piece
    return said


@pytest.mark.parametrize("num_silent", [16, 1000])
def test_silent_connections_hold_up_no_host(num_silent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "HANDSHAKE_SECONDS", 600.0)  # so that no deadline frees a place
    with ExitStack() as silent_ones, gathering(2) as (leader, gathered, join):
        for _ in range(num_silent):
            silent_ones.enter_context(connect(leader))
        join(1).result(PATIENCE_S).close()
        gathered.result(PATIENCE_S)


def test_a_silent_connection_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "HANDSHAKE_SECONDS", 0.2)
    with gathering(2) as (leader, gathered, join):
        with connect(leader) as silent_one:
            assert len(everything(silent_one)) == GREETING_BYTES
        join(1).result(PATIENCE_S).close()
        gathered.result(PATIENCE_S)


@pytest.mark.parametrize("key", [None, "a-key-that-was-guessed"])
def test_without_the_key_nobody_is_a_host_or_is_told_a_fact(key: str | None) -> None:
    """Neither with the message that joined a host before, nor with a proof by another key."""
    with gathering(2) as (leader, gathered, join):
        join_message = frame(Kind.JOIN, b"eagre hosts 1\0", pack_facts({"host_index": "1", "max_num_seqs": "1"}))
        with connect(leader) as stranger:
            if key is None:
                stranger.sendall(join_message + bytes(PROTOCOL.introduction_bytes))
            else:
                with pytest.raises(handshake.ProofRefused):
                    handshake.introduce(stranger, PROTOCOL, key.encode())
            said = everything(stranger)
        assert len(said) <= GREETING_BYTES
        assert b"max_num_seqs" not in said
        assert not gathered.done()
        join(1).result(PATIENCE_S).close()
        gathered.result(PATIENCE_S)


def test_a_host_that_has_the_key_and_says_nothing_holds_up_no_other() -> None:
    with gathering(3) as (leader, gathered, join):
        with connect(leader) as mute:
            handshake.introduce(mute, PROTOCOL, KEY.encode())
            followers = [join(1), join(2)]
            gathered.result(PATIENCE_S)
        for follower in followers:
            follower.result(PATIENCE_S).close()


def test_a_leader_without_the_key_is_none() -> None:
    address = free_address()
    impostor = Leader(address, 2, FACTS, "a-key-that-was-guessed")
    try:
        with pytest.raises(ValueError, match="another key, or no place now"):
            Follower(address, 1, 2, FACTS, KEY, 0.1)
    finally:
        impostor.close("the test is over")
    with socket.create_server((address.host, address.plan_port)) as other:
        accepted = ExitStack()

        def answer() -> None:
            connection = accepted.enter_context(other.accept()[0])
            connection.sendall(PROTOCOL.magic + bytes(2 * 32))

        threading.Thread(target=answer, daemon=True).start()
        with accepted, pytest.raises(ValueError, match="is no leader with this coordinator_key"):
            Follower(address, 1, 2, FACTS, KEY, PATIENCE_S)


def test_a_follower_that_has_reached_itself_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = socket.create_connection

    def reach_itself(*_: object, **__: object) -> socket.socket:
        monkeypatch.setattr(socket, "create_connection", connect)
        own = socket.socket()
        own.bind(("127.0.0.1", 0))
        own.connect(own.getsockname())
        return own

    with gathering(2) as (_, gathered, join):
        monkeypatch.setattr(socket, "create_connection", reach_itself)
        join(1).result(PATIENCE_S).close()
        gathered.result(PATIENCE_S)


def test_hosts_that_do_not_come_are_named() -> None:
    address = free_address()
    with ThreadPoolExecutor() as threads, closing(Leader(address, 3, FACTS, KEY)) as leader:
        joining = threads.submit(Follower, address, 2, 3, {"max_num_seqs": "1"}, KEY, PATIENCE_S)
        given_up = time.monotonic() + PATIENCE_S
        while leader._candidates.empty():
            assert time.monotonic() < given_up
            time.sleep(0.005)
        with pytest.raises(ValueError, match=r"1, 2 did not join within 0\.1 s; host 2 was refused: the version"):
            leader.gather(silent, 0.1)
        with pytest.raises(ValueError, match="refuses this host"):
            joining.result(PATIENCE_S)


def test_hosts_with_other_devices_are_refused() -> None:
    with gathering(2) as (leader, gathered, join):
        follower = join(1).result(PATIENCE_S)
        gathered.result(PATIENCE_S)
        with ThreadPoolExecutor() as threads:
            settled = threads.submit(follower.settle, {"platform": "gpu"}, 3)
            with pytest.raises(ValueError, match="host 1 of 2 cannot compute with the leader: platform is gpu there"):
                leader.settle({"platform": "cpu"}, 3)
            with pytest.raises(ValueError, match="refuses this host: platform is gpu there and cpu on the leader"):
                settled.result(PATIENCE_S)
        follower.close()


def test_each_side_learns_why_the_other_has_ended() -> None:
    with gathering(2) as (leader, gathered, join):
        follower = join(1).result(PATIENCE_S)
        gathered.result(PATIENCE_S)
        follower.close("no such model")
        with pytest.raises(HostLost, match="host 1 of 2 has ended: no such model"):
            leader.settle({}, 1)
    with gathering(2) as (leader, gathered, join):
        follower = join(1).result(PATIENCE_S)
        gathered.result(PATIENCE_S)
        lost = threading.Event()
        leader.watch(lambda error: lost.set())
        follower.close()
        assert lost.wait(PATIENCE_S)
        with pytest.raises(HostLost, match="host 1 of 2 is lost"), leader.blamed(ArithmeticError):
            raise ArithmeticError
