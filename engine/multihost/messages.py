"""The messages between leader and followers.

A message is its size (4 bytes, little-endian), its kind (1 byte), its content, and a tag, which proves that it is the
next message of the other end of this connection.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from engine.peer_transport.handshake import Protocol

HEADER = struct.Struct("<IB")
TAG_BYTES = 16
PROTOCOL = Protocol(b"eagreho2", 0)  # of the handshake before the first message
LEADER, FOLLOWER = b"leader", b"follower"  # the two senders of a connection
_FACT_END = "\0"


class Kind(IntEnum):
    HEARTBEAT = 0  # the sender lives; both sides send it
    JOIN = 1  # follower: its index and its facts
    ACCEPTED = 2  # leader: all hosts have joined
    REFUSED = 3  # leader: why this host may not compute with the others
    OFFER = 4  # follower: the facts of its devices, and how many pages it has room for
    SETTLED = 5  # leader: how many pages every host allocates
    READY = 6  # follower: its programs are compiled
    BEGIN = 7  # leader: all hosts are ready
    STEP = 8  # leader: the inputs of a step, in the order of the steps
    MASKS = 9  # leader: the masks that the last step has waited for
    SLEEP = 10  # leader: the pages' memory is given back
    WAKE = 11  # leader: it is allocated again
    END = 12  # both: the sender ends, and why if that is no wish of an operator
    ADAPTER_LAYER = 13  # leader: one layer of a leaf of an adapter
    LOAD_ADAPTER = 14  # leader: the slot for the adapter whose layers have come


class Message(NamedTuple):
    kind: Kind
    content: bytes


def frame(kind: Kind, *parts: bytes | memoryview) -> bytes:
    """A message as it is sent; `parts` are the content in pieces of contiguous memory."""
    size = sum(len(part) if isinstance(part, bytes) else part.nbytes for part in parts)
    return b"".join((HEADER.pack(size, kind), *parts))


class MessageTags:
    """The tags of the messages of one sender, in their order: HMACs by the session's key, of number and digest."""

    def __init__(self, session_key: bytes, sender: bytes) -> None:
        self._key = hmac.digest(session_key, sender, "sha256")
        self._number = 0

    def next(self, digest: bytes) -> bytes:
        """The tag of the next message, by the digest of what `frame` has made."""
        tag = hmac.digest(self._key, self._number.to_bytes(8, "little") + digest, "sha256")[:TAG_BYTES]
        self._number += 1
        return tag


def digest_of(*pieces: bytes) -> bytes:
    """The digest of a message that its tag is made of, so that a message for many followers is read once."""
    seen = hashlib.sha256()
    for piece in pieces:
        seen.update(piece)
    return seen.digest()


def pack_facts(facts: Mapping[str, str]) -> bytes:
    """Names and values, none of which has a zero byte."""
    return _FACT_END.join(text for fact in facts.items() for text in fact).encode()


def unpack_facts(content: bytes) -> dict[str, str]:
    """The facts that `pack_facts` packed; raises ValueError if that is no list of facts."""
    texts = content.decode().split(_FACT_END)
    if len(texts) % 2:
        raise ValueError("a fact lacks its value")
    return dict(zip(texts[::2], texts[1::2], strict=True))


def difference(own: Mapping[str, str], other: Mapping[str, str]) -> str | None:
    """The first fact in which another host differs from this one, as the end of a sentence; None if there is none."""
    for name in (*own, *(other.keys() - own.keys())):
        here, there = own.get(name), other.get(name)
        if here != there:
            return f"{name} is {there} there and {here} on the leader"
    return None
