"""The handshake by which two servers prove to each other that they have one key, without showing it.

    server   magic, nonce
    client   magic, nonce, claim, proof
    server   proof

The claim is what both must have alike, such as the fingerprint of the pages that they exchange. Every message has a
size that its receiver knows before it comes. Proofs are HMACs (RFC 2104) with SHA-256 of all that was said before. The
key of the session follows from the shared one and from both nonces, so nothing of another session can be replayed.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import time
from typing import NamedTuple

from engine.peer_transport.deadlines import PeerError, receive, send

DIGEST_BYTES = NONCE_BYTES = 32
MAGIC_BYTES = 8
GREETING_BYTES = MAGIC_BYTES + NONCE_BYTES
HANDSHAKE_SECONDS = 5.0  # for all three messages

_CLIENT, _SERVER, _OTHERS, _SESSION = b"client", b"server", b"others", b"session"


class Protocol(NamedTuple):
    """What distinguishes one use of the handshake from another."""

    magic: bytes  # MAGIC_BYTES of them
    claim_bytes: int

    @property
    def introduction_bytes(self) -> int:
        return MAGIC_BYTES + NONCE_BYTES + self.claim_bytes + DIGEST_BYTES


class OtherClaim(PeerError):
    """The peer has the key, and claims something else."""


class UntrustedPeer(PeerError):
    """What answers lacks the key, or is another program."""


class ProofRefused(PeerError):
    """The server has ended the connection in the place of a proof: it has another key, or no place."""


class Verdict(NamedTuple):
    """The server's last message, and the session's key; None if the client claims something else."""

    answer: bytes
    session_key: bytes | None


class Challenge:
    """The server's part of one handshake, without its socket."""

    def __init__(self, protocol: Protocol, key: bytes) -> None:
        self._protocol = protocol
        self._key = key
        self.greeting = protocol.magic + secrets.token_bytes(NONCE_BYTES)

    def verify(self, introduction: bytes, claim: bytes) -> Verdict:
        """Judges the client's message; raises UntrustedPeer if it does not have the key."""
        said, proof = introduction[:-DIGEST_BYTES], introduction[-DIGEST_BYTES:]
        transcript = self.greeting[MAGIC_BYTES:] + said
        if said[:MAGIC_BYTES] != self._protocol.magic or not _is_equal(proof, self._key, _CLIENT, transcript):
            raise UntrustedPeer("it does not have the key")
        if said[MAGIC_BYTES + NONCE_BYTES :] != claim:
            return Verdict(_prove(self._key, _OTHERS, transcript), None)
        return Verdict(_prove(self._key, _SERVER, transcript), _prove(self._key, _SESSION, transcript))


def introduce(connection: socket.socket, protocol: Protocol, key: bytes, claim: bytes = b"") -> bytes:
    """The client's part of the handshake; returns the key of the session.

    Raises:
        ProofRefused: the server ended the connection after it had read the proof.
        OtherClaim: the server has the key and other things than the claim.
        UntrustedPeer: the server lacks the key, or is another program.
        OSError: it cannot be reached, or is silent.
    """
    ends_at = time.monotonic() + HANDSHAKE_SECONDS
    greeting = bytes(receive(connection, GREETING_BYTES, HANDSHAKE_SECONDS))
    if greeting[:MAGIC_BYTES] != protocol.magic:
        raise UntrustedPeer("it speaks another protocol")
    said = protocol.magic + secrets.token_bytes(NONCE_BYTES) + claim
    transcript = greeting[MAGIC_BYTES:] + said
    try:
        send(connection, [said + _prove(key, _CLIENT, transcript)], ends_at - time.monotonic())
        proof = bytes(receive(connection, DIGEST_BYTES, ends_at - time.monotonic()))
    except TimeoutError:
        raise
    except OSError as error:
        raise ProofRefused("it has ended the connection: it has another key, or no place now") from error
    if _is_equal(proof, key, _OTHERS, transcript):
        raise OtherClaim("it claims something else")
    if not _is_equal(proof, key, _SERVER, transcript):
        raise UntrustedPeer("it does not have the key")
    return _prove(key, _SESSION, transcript)


def _is_equal(proof: bytes, key: bytes, what: bytes, transcript: bytes) -> bool:
    return hmac.compare_digest(proof, _prove(key, what, transcript))


def _prove(key: bytes, what: bytes, transcript: bytes) -> bytes:
    return hmac.digest(key, what + transcript, "sha256")
