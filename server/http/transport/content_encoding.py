"""Decoding of request bodies by their Content-Encoding (RFC 9110, section 8.4), with a bound on the result.

aiohttp would decode a body while it is parsed: on the event loop, before anybody knows whether the body is wanted, and
a thousand times as large as what a client has sent. Its parser is told not to (`GuardedRunner`); a route that wants the
body decodes it in a worker thread.
"""

from __future__ import annotations

import zlib

PLAIN = frozenset({"", "identity"})
ENCODINGS = frozenset({"gzip", "deflate"})

MAX_MEMBERS = 16  # of a gzip body (RFC 1952, section 2.2); what follows one is copied
_GZIP_WBITS, _ZLIB_WBITS, _RAW_WBITS = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS
_DEFLATED = 8  # the compression method in the first byte of a zlib stream (RFC 1950)


class InvalidEncoding(ValueError):
    """The body is not what its encoding says."""


class DecodedTooLarge(ValueError):
    """The decoded body is above the limit."""


def decode(body: bytes, encoding: str, most: int) -> bytes:
    """Returns the decoded body. Computes no more than a little above `most` bytes, whatever the body would become.

    Args:
        encoding: one of `ENCODINGS`.

    Raises:
        InvalidEncoding, DecodedTooLarge: as they say.
    """
    decoded = bytearray()
    for _ in range(MAX_MEMBERS):
        stream = zlib.decompressobj(_GZIP_WBITS if encoding == "gzip" else _deflate_wbits(body))
        try:
            decoded += stream.decompress(body, most + 1 - len(decoded))
        except zlib.error as error:
            raise InvalidEncoding(str(error)) from None
        if len(decoded) > most:
            raise DecodedTooLarge
        if not stream.eof:
            raise InvalidEncoding("the body ends too early")
        body = stream.unused_data
        if not body:
            return bytes(decoded)
        if encoding != "gzip":
            raise InvalidEncoding("bytes follow the end")
    raise InvalidEncoding(f"the body has more than {MAX_MEMBERS} members")


def _deflate_wbits(body: bytes) -> int:
    """Some clients send deflate without the header of zlib that RFC 9110 wants."""
    return _ZLIB_WBITS if body[:1] and body[0] & 0xF == _DEFLATED else _RAW_WBITS
