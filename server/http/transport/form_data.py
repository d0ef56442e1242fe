"""An incremental parser of multipart/form-data (RFC 7578): one file, which may be large, and a few short fields."""

from __future__ import annotations

import re
from urllib.parse import unquote

from server.protocol.errors import ApiError, invalid_value, shorten

MAX_PARTS = 16
MAX_HEAD_BYTES = 8 << 10  # of one part
MAX_FIELD_BYTES = 1 << 10
FILE_FIELD = "file"

_BOUNDARY = re.compile(r"""multipart/form-data\s*;(?:.*;)?\s*boundary=(?:"([^"]{1,70})"|([^\s";]{1,70}))""", re.I)
_PARAMETER = re.compile(r""";\s*(name|filename\*?)=(?:"((?:[^"\\]|\\.)*)"|([^\s";]+))""", re.I)
_EXTENDED = re.compile(r"utf-8'[^']*'(.*)", re.I)


class FormData:
    """A form as it arrives."""

    def __init__(self, boundary: bytes) -> None:
        self.fields: dict[str, str] = {}
        self.file_name: str | None = None  # of the file, once it has begun
        self._delimiter = b"\r\n--" + boundary
        self._buffer = b"\r\n"  # as if a line ended before the first delimiter
        self._num_parts = 0
        self._is_head = False  # a part's head comes next, or the end
        self._is_ended = False
        self._field: str | None = None  # the name of the part that is read; None: it is ignored
        self._value = b""  # of a short field, as far as it is there

    @classmethod
    def of(cls, content_type: str) -> FormData:
        """The parser for a body of this content type; raises ApiError where it is no form."""
        found = _BOUNDARY.match(content_type)
        if found is None:
            raise ApiError(
                f"Content-Type is {shorten(content_type)}; it must be multipart/form-data with a boundary",
                status=415,
                code="unsupported_content_type",
            )
        return cls((found[1] or found[2]).encode("utf-8", "replace"))

    def feed(self, data: bytes) -> bytes:
        """The bytes of the file that are in `data`, the next piece of the body; raises ApiError."""
        self._buffer += data
        found: list[bytes] = []
        while not self._is_ended:
            if self._is_head:
                if not self._read_head():
                    break
                continue
            at = self._buffer.find(self._delimiter)
            end = at if at >= 0 else max(0, len(self._buffer) - len(self._delimiter) + 1)
            self._take(self._buffer[:end], found)
            if at < 0:
                self._buffer = self._buffer[end:]
                break
            self._buffer = self._buffer[at + len(self._delimiter) :]
            self._end_part()
            self._is_head = True
        if self._is_ended:
            self._buffer = b""  # what follows means nothing
        return b"".join(found)

    def finish(self) -> None:
        """Raises ApiError: the body has ended, and the form has not, or it has no file."""
        if not self._is_ended:
            raise ApiError("the form ends before its last boundary", code="invalid_form")
        if self.file_name is None:
            raise ApiError("file is required", param=FILE_FIELD, code="missing_required_parameter")

    def _take(self, piece: bytes, found: list[bytes]) -> None:
        if self._field == FILE_FIELD:
            found.append(piece)
        elif self._field is not None:
            self._value += piece
            if len(self._value) > MAX_FIELD_BYTES:
                raise invalid_value(
                    f"{self._field} has more than {MAX_FIELD_BYTES} bytes; it must be shorter", self._field
                )

    def _end_part(self) -> None:
        if self._field is not None and self._field != FILE_FIELD:
            self.fields[self._field] = self._value.decode("utf-8", "replace")
        self._field, self._value = None, b""

    def _read_head(self) -> bool:
        """Reads the head of a part, or the end of the form; False where not all of it is there."""
        if self._buffer.startswith(b"--"):
            self._is_ended = True
            return True
        end = self._buffer.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES)
        if end < 0:
            if len(self._buffer) >= MAX_HEAD_BYTES:
                raise ApiError(f"a part's head has more than {MAX_HEAD_BYTES} bytes", code="invalid_form")
            return False
        first, *lines = self._buffer[:end].decode("utf-8", "replace").split("\r\n")
        if first.strip():
            raise ApiError("a boundary is not at the end of its line", code="invalid_form")
        self._buffer = self._buffer[end + 4 :]
        self._num_parts += 1
        if self._num_parts > MAX_PARTS:
            raise ApiError(f"the form has more than {MAX_PARTS} parts", code="invalid_form")
        self._begin_part(lines)
        self._is_head = False
        return True

    def _begin_part(self, lines: list[str]) -> None:
        disposition = next((line for line in lines if line.lower().startswith("content-disposition:")), "")
        parameters = {found[1].lower(): _plain(found[2], found[3]) for found in _PARAMETER.finditer(disposition)}
        self._field = parameters.get("name")
        if self._field != FILE_FIELD:
            return
        if self.file_name is not None:
            raise invalid_value("the form has two files; it must have one", FILE_FIELD)
        extended = _EXTENDED.fullmatch(parameters.get("filename*", ""))
        name = parameters.get("filename") if extended is None else unquote(extended[1])
        if name is None:
            raise invalid_value("file is no file; it must have a filename", FILE_FIELD)
        self.file_name = name


def _plain(quoted: str | None, token: str | None) -> str:
    return re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else token or ""
