"""An incremental parser of server-sent events, for the client in the command line."""

from __future__ import annotations

import codecs


class SseParser:
    """Turns bytes into events; how the bytes are split makes no difference.

    Only the field `data` is read. Comments, other fields and events without data are dropped. Lines may end
    in LF, CR LF or CR.

        for data in parser.decode(chunk): …
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
        self._line = ""
        self._data: list[str] = []
        self._after_cr = False

    def decode(self, chunk: bytes) -> list[str]:
        """The data of every event that `chunk` completes."""
        events = []
        for character in self._decoder.decode(chunk):
            if character == "\n" and self._after_cr:
                self._after_cr = False
                continue
            self._after_cr = character == "\r"
            if character not in "\r\n":
                self._line += character
                continue
            line, self._line = self._line, ""
            if line:
                self._read_field(line)
            elif self._data:
                events.append("\n".join(self._data))
                self._data.clear()
        return events

    def _read_field(self, line: str) -> None:
        name, _, value = line.partition(":")
        if name == "data":
            self._data.append(value.removeprefix(" "))
