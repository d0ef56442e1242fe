"""An independent SSE parser for tests, so that the server's bytes are not checked with the server's code."""

from __future__ import annotations

import json
from typing import Any, NamedTuple


class SseRecord(NamedTuple):
    kind: str  # "comment" or "data"
    text: str


class SseReader:
    """Turns bytes into records, and keeps an incomplete record until its rest arrives."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[SseRecord]:
        *blocks, self._rest = (self._rest + data).split(b"\n\n")
        records = []
        for block in blocks:
            lines = block.decode().split("\n")
            assert len(lines) == 1, f"each event has one line: {lines}"
            if lines[0].startswith(":"):
                records.append(SseRecord("comment", lines[0][1:].strip()))
            else:
                name, value = lines[0].split(": ", 1)
                assert name == "data"
                records.append(SseRecord("data", value))
        return records

    @property
    def is_between_records(self) -> bool:
        return self._rest == b""


def read_all(data: bytes) -> list[SseRecord]:
    reader = SseReader()
    records = reader.feed(data)
    assert reader.is_between_records
    return records


def chunks_of(data: bytes) -> list[dict[str, Any]]:
    """The JSON objects of a whole stream, which must end in [DONE]."""
    records = [record.text for record in read_all(data) if record.kind == "data"]
    assert records[-1] == "[DONE]"
    return [json.loads(text) for text in records[:-1]]
