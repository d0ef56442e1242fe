"""The listener of servers: what it says in the log, and who makes room."""

from __future__ import annotations

import socket
from contextlib import ExitStack, closing, suppress

import pytest

from engine.peer_transport.handshake import GREETING_BYTES, ProofRefused, Protocol, introduce
from engine.peer_transport.listener import MOST_OF_ADDRESS, PeerListener
from tests.patience import PATIENCE_S

PROTOCOL = Protocol(b"of tests", 4)
KEY, CLAIM = b"a key of two servers", b"same"


def listening(claim: bytes | None = CLAIM) -> PeerListener:
    return PeerListener("127.0.0.1", 0, PROTOCOL, KEY, lambda connection, *_: connection.close(), lambda: claim)


def connect(listener: PeerListener) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", listener.port))
    connection.settimeout(PATIENCE_S)
    return connection


def test_many_clients_without_the_key_are_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with closing(listening()) as listener:
        for _ in range(5):
            with connect(listener) as stranger, pytest.raises(ProofRefused):
                introduce(stranger, PROTOCOL, b"a key that was guessed", CLAIM)
        with connect(listener) as peer:
            assert len(introduce(peer, PROTOCOL, KEY, CLAIM)) == 32
    assert caplog.text.count("connections that were ended because of their handshake: 1") == 1
    assert caplog.text.count("handshake") == 1


def test_a_newcomer_gets_the_place_of_the_oldest_stranger_of_its_address() -> None:
    with ExitStack() as stack, closing(listening()) as listener:
        strangers = [stack.enter_context(connect(listener)) for _ in range(MOST_OF_ADDRESS + 1)]
        greetings = []
        for stranger in (strangers[-1], strangers[0]):
            said = b""
            with suppress(ConnectionResetError):
                while len(said) < GREETING_BYTES and (piece := stranger.recv(4096)):
                    said += piece
            greetings.append(said)
        assert len(greetings[0]) == GREETING_BYTES
        with suppress(ConnectionResetError):
            assert strangers[0].recv(1) == b""  # it has ended
        assert len(strangers[1].recv(GREETING_BYTES, socket.MSG_WAITALL)) == GREETING_BYTES
        strangers[1].settimeout(0.1)
        with pytest.raises(TimeoutError):
            strangers[1].recv(1)


def test_where_nothing_is_offered_everybody_is_sent_away() -> None:
    with closing(listening(None)) as listener, connect(listener) as peer:
        assert peer.recv(1) == b""
