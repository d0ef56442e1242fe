"""The bytes around what streams send: chunks of HTTP and frames of WebSockets."""

from __future__ import annotations

import struct
from collections.abc import Sequence

_FINAL_TEXT = 0x81  # the only frame of a text message


def chunk(pieces: Sequence[bytes]) -> bytes:
    """All pieces as one chunk of an HTTP/1.1 body (RFC 9112, section 7.1). There is at least one byte."""
    data = b"".join(pieces)
    return b"%x\r\n%b\r\n" % (len(data), data)


def text_frames(messages: Sequence[bytes]) -> bytes:
    """Each message, UTF-8, as one text frame of a server, which is not masked (RFC 6455, section 5.2)."""
    return b"".join([_text_frame(message) for message in messages])


def _text_frame(message: bytes) -> bytes:
    length = len(message)
    if length < 126:
        return b"\x81%c%b" % (length, message)
    if length < 1 << 16:
        return struct.pack("!BBH", _FINAL_TEXT, 126, length) + message
    return struct.pack("!BBQ", _FINAL_TEXT, 127, length) + message
