"""Reading a stream of server-sent events."""

from __future__ import annotations

from collections.abc import Iterator


class SSEParser:
    """Takes the bytes of an event stream, cut anywhere, and gives the data of each event.

    By the parsing rules of the HTML standard: lines end in CR, LF or CRLF, several data lines
    are joined by LF, an event is complete at its empty line, comments and other fields are skipped,
    and so is a byte order mark at the start.
    """

    def __init__(self) -> None:
        self._rest = b""  # a line that has not ended
        self._data: list[bytes] = []  # of the event that has not ended
        self._after_cr = False  # a LF that comes next belongs to the CR before it
        self._is_first_line = True

    def feed(self, chunk: bytes) -> list[bytes]:
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        if not chunk:
            return []
        self._after_cr = chunk.endswith(b"\r")
        # bytes.splitlines knows these three line ends and no other; UTF-8 has none of them inside a character.
        lines = (self._rest + chunk).splitlines(keepends=True)
        self._rest = b"" if chunk.endswith((b"\r", b"\n")) else lines.pop()
        return [event for line in lines for event in self._end_line(line.rstrip(b"\r\n"))]

    def _end_line(self, line: bytes) -> Iterator[bytes]:
        if self._is_first_line:
            line = line.removeprefix(b"\xef\xbb\xbf")
            self._is_first_line = False
        if not line:
            if self._data:
                yield b"\n".join(self._data)
            self._data = []
            return
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
