from __future__ import annotations

import pytest

from server.command.client.sse_parser import SseParser

STREAM = ': ping\n\ndata: {"a": "é🌊"}\n\nevent: x\ndata:one\ndata: two\n\n\n: note\ndata: [DONE]\n\n'
EVENTS = ['{"a": "é🌊"}', "one\ntwo", "[DONE]"]


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_every_split_gives_the_same_events(line_end: str) -> None:
    data = STREAM.replace("\n", line_end).encode()
    for offset in range(len(data) + 1):
        parser = SseParser()
        assert parser.decode(data[:offset]) + parser.decode(data[offset:]) == EVENTS
    parser = SseParser()
    assert [event for byte in data for event in parser.decode(bytes([byte]))] == EVENTS


def test_an_incomplete_event_is_not_given() -> None:
    assert SseParser().decode(b"data: half\n") == []
