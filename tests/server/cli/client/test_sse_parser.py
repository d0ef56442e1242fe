from __future__ import annotations

import pytest

from server.cli.client.sse_parser import SseParser


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data: a\r\n\r\ndata: b\r\rdata: c\n\n", [b"a", b"b", b"c"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b": ping\n\nevent: delta\nid: 3\nretry: 10\ndata: a\n\n", [b"a"]),
        (b"data: one\ndata:two\ndata:  three\n\n", [b"one\ntwo\n three"]),
        (b"data\n\n", [b""]),
        (b"data:\ndata\n\n", [b"\n"]),
        (b"database: a\n\n", []),
        ("data: é\u2028\u0085 🌊\n\n".encode(), ["é\u2028\u0085 🌊".encode()]),
        (b"data: a:b\n\n\n\n\n", [b"a:b"]),
        (b"data: a\n\ndata: never ended\n", [b"a"]),
        (b"event: no data\n\ndata: a\n\n", [b"a"]),
    ],
)
def test_every_split_of_the_bytes_gives_the_same_events(stream: bytes, events: list[bytes]) -> None:
    for first in range(len(stream) + 1):
        for second in range(first, len(stream) + 1):
            parser = SseParser()
            got = parser.feed(stream[:first]) + parser.feed(stream[first:second]) + parser.feed(stream[second:])
            assert got == events
    parser = SseParser()
    assert [event for byte in stream for event in parser.feed(bytes([byte]))] == events


def test_an_event_is_given_as_soon_as_its_empty_line_is_there() -> None:
    parser = SseParser()
    assert parser.feed(b"data: a\r") == []
    assert parser.feed(b"\n") == []
    assert parser.feed(b"\r") == [b"a"]
    assert parser.feed(b"\ndata: b\n\n") == [b"b"]
