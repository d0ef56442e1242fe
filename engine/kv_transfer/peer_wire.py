"""The protocol between servers that share pages: a handshake by a shared key, then names and pages with digests.

    server   magic, nonce
    client   magic, nonce, fingerprint, bytes of a page, proof
    server   proof
    client   request number, kind and 32 bytes            and the server's answer, again and again

Every message has a size that its receiver knows before it comes, or within a bound, so no client decides how much is
read. All digests are HMACs (RFC 2104) with SHA-256: the proofs by the shared key, those of answers by a key that
follows from it and from both nonces, over the request and its number too. So no answer can be changed in transit, or be
replayed for another request. Nothing is encrypted.
"""

import hashlib
import hmac
import secrets
import socket
import time
from collections.abc import Sequence
from struct import Struct

MAGIC = b"eagrepp1"
DIGEST_BYTES = NONCE_BYTES = NAME_BYTES = 32
HANDSHAKE_SECONDS = 5.0
MOST_NAMES = 4096  # in one answer
OTHERS = "its pages are of another model, configuration, version or processor"

NAMES, PAGE = 1, 2  # kinds of questions
GREETING = Struct(f"<8s{NONCE_BYTES}s")
INTRODUCTION = Struct(f"<8s{NONCE_BYTES}s32sQ{DIGEST_BYTES}s")
QUESTION = Struct("<QB32s")
SINCE = Struct("<QQ16x")  # of a question for names: which list, and how many of it are known
NAMES_HEAD = Struct(f"<QQI{DIGEST_BYTES}s")  # which list, how many of it are known now, names that follow, digest
PAGE_HEAD = Struct(f"<Q{DIGEST_BYTES}s")  # bytes that follow: those of a page, or 0; digest


class PeerError(OSError):
    """The peer violates the protocol or lacks the key; the message says how."""


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


def greet(connection: socket.socket, key: bytes, fingerprint: str, page_bytes: int) -> Session:
    """The server's part of the handshake; raises OSError if the client lacks the key, has other pages, or is silent."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    send(connection, [GREETING.pack(MAGIC, nonce)], HANDSHAKE_SECONDS)
    told = bytes(receive(connection, INTRODUCTION.size, HANDSHAKE_SECONDS))
    magic, _, stated, size, proof = INTRODUCTION.unpack(told)
    transcript = nonce + told[:-DIGEST_BYTES]
    if magic != MAGIC or not hmac.compare_digest(proof, _prove(key, b"client", transcript)):
        raise PeerError("it does not have the key")
    has_same = (stated, size) == (fingerprint.encode(), page_bytes)
    send(connection, [_prove(key, b"server" if has_same else b"others", transcript)], HANDSHAKE_SECONDS)
    if not has_same:
        raise PeerError(OTHERS)
    return Session(connection, _prove(key, b"session", transcript))


def introduce(connection: socket.socket, key: bytes, fingerprint: str, page_bytes: int) -> Session:
    """The client's part of the handshake; raises OSError if the server lacks the key or is silent."""
    magic, other = GREETING.unpack(receive(connection, GREETING.size, HANDSHAKE_SECONDS))
    if magic != MAGIC:
        raise PeerError("it is no server of pages")
    told = INTRODUCTION.pack(MAGIC, secrets.token_bytes(NONCE_BYTES), fingerprint.encode(), page_bytes, b"")
    transcript = other + told[:-DIGEST_BYTES]
    send(connection, [told[:-DIGEST_BYTES], _prove(key, b"client", transcript)], HANDSHAKE_SECONDS)
    proof = bytes(receive(connection, DIGEST_BYTES, HANDSHAKE_SECONDS))
    if hmac.compare_digest(proof, _prove(key, b"others", transcript)):
        raise PeerError(OTHERS)
    if not hmac.compare_digest(proof, _prove(key, b"server", transcript)):
        raise PeerError("it does not have the key")
    return Session(connection, _prove(key, b"session", transcript))


def send(connection: socket.socket, pieces: Sequence[bytes | memoryview], seconds: float) -> None:
    """Sends all pieces; raises OSError if that takes longer than `seconds`."""
    ends_at = time.monotonic() + seconds
    for piece in pieces:
        connection.settimeout(_left(ends_at))
        connection.sendall(piece)


def receive(connection: socket.socket, size: int, seconds: float) -> bytearray:
    """Exactly so many bytes; raises OSError if they do not come within `seconds`."""
    content, ends_at = bytearray(size), time.monotonic() + seconds
    rest = memoryview(content)
    while rest:
        connection.settimeout(_left(ends_at))
        num_read = connection.recv_into(rest)
        if num_read == 0:
            raise PeerError("the connection has ended")
        rest = rest[num_read:]
    return content


def _left(ends_at: float) -> float:
    left = ends_at - time.monotonic()
    if left <= 0:
        raise TimeoutError("it was not done in time")
    return left


def _prove(key: bytes, what: bytes, transcript: bytes) -> bytes:
    return hmac.digest(key, what + transcript, "sha256")
