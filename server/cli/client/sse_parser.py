"""An incremental parser of server-sent events."""

from collections.abc import Iterator


class SseParser:
    """Takes the bytes of an event stream in any pieces and returns the data of each event (HTML standard).

    Lines end in CR, LF or CRLF; comments, other fields and a byte order mark at the start are skipped.
    """

    def __init__(self) -> None:
        self._rest = b""  # the incomplete line
        self._data: list[bytes] = []  # the data lines of the incomplete event
        self._after_cr = False  # whether the last byte was a CR, to which a following LF belongs
        self._is_first_line = True

    def feed(self, chunk: bytes) -> list[bytes]:
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        if not chunk:
            return []
        self._after_cr = chunk.endswith(b"\r")
        # bytes.splitlines splits at exactly these three line ends, and no UTF-8 character contains one of them.
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
