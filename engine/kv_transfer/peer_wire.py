"""The protocol between servers that share pages: after the handshake, names and pages with digests.

    both     the handshake of engine.peer_transport; the claim is a fingerprint and the bytes of a page
    client   request number, kind and 32 bytes            and the server's answer, again and again

Every message has a size that its receiver knows before it comes, or within a bound, so no client decides how much is
read. The digests of answers are HMACs (RFC 2104) with SHA-256 by the session's key, over the request and its number
too. So no answer can be changed in transit, or be replayed for another request. Nothing is encrypted.
"""

import hashlib
import hmac
import socket
from collections.abc import Sequence
from struct import Struct

from engine.peer_transport.deadlines import PeerError, receive, send
from engine.peer_transport.handshake import OtherClaim, Protocol
from engine.peer_transport.handshake import introduce as prove_key

NAME_BYTES = 32
DIGEST_BYTES = 32  # of answers
MOST_NAMES = 4096  # in one answer
OTHERS = "its pages are of another model, configuration, version or processor"

NAMES, PAGE = 1, 2  # kinds of questions
CLAIM = Struct("<32sQ")  # the fingerprint of what the pages depend on, and the bytes of one
PROTOCOL = Protocol(b"eagrepp1", CLAIM.size)
QUESTION = Struct("<QB32s")
SINCE = Struct("<QQ16x")  # of a question for names: which list, and how many of it are known
NAMES_HEAD = Struct(f"<QQI{DIGEST_BYTES}s")  # which list, how many of it are known now, names that follow, digest
PAGE_HEAD = Struct(f"<Q{DIGEST_BYTES}s")  # bytes that follow: those of a page, or 0; digest


class DamagedAnswer(PeerError):
    """An answer whose digest is wrong."""


class Session:
    """A connection whose two ends have the same key and the same pages."""

    def __init__(self, connection: socket.socket, key: bytes) -> None:
        self._connection = connection
        self._key = key
        self.num_asked = 0

    def digest(self, question: bytes, pieces: Sequence[bytes | memoryview]) -> bytes:
        """The digest of an answer to a request."""
        seen = hmac.new(self._key, question, hashlib.sha256)
        for piece in pieces:
            seen.update(piece)
        return seen.digest()

    def check(self, shown: bytes, question: bytes, pieces: Sequence[bytes | memoryview]) -> None:
        """Raises DamagedAnswer if an answer does not have its digest."""
        if not hmac.compare_digest(shown, self.digest(question, pieces)):
            raise DamagedAnswer("an answer does not have its digest")

    def send(self, pieces: Sequence[bytes | memoryview], seconds: float) -> None:
        """As `send`."""
        send(self._connection, pieces, seconds)

    def receive(self, size: int, seconds: float) -> bytearray:
        """As `receive`."""
        return receive(self._connection, size, seconds)

    def close(self) -> None:
        self._connection.close()


def claim_of(fingerprint: str, page_bytes: int) -> bytes:
    """What both servers must have alike."""
    return CLAIM.pack(fingerprint.encode(), page_bytes)


def introduce(connection: socket.socket, key: bytes, fingerprint: str, page_bytes: int) -> Session:
    """The client's part of the handshake; raises OSError if the server lacks the key or is silent."""
    try:
        return Session(connection, prove_key(connection, PROTOCOL, key, claim_of(fingerprint, page_bytes)))
    except OtherClaim as error:
        raise PeerError(OTHERS) from error
