"""The file to which answers are added, one line each, and from which an interrupted command goes on."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

import orjson

from server.cli.client.errors import NoAnswer

_BEGINNING = b'{"id":"batch_req_'  # of every line


class AnswerFile:
    """A file of answers; used as `with`."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        """Args:
        resume: whether the answers that are in the file are kept; a line that is cut off is not.

        Raises:
            NoAnswer: the file has content and is not resumed, or it cannot be read and written.
        """
        self._path = path
        self.answered: set[str] = set()  # the custom_ids of its lines
        try:
            self._file = path.open("ab+")
            try:
                if self._file.tell() and not resume:
                    raise NoAnswer(f"{path} has answers already; --resume goes on with it")
                self._read()
            except BaseException:
                self._file.close()
                raise
        except OSError as error:
            raise NoAnswer(f"{path} cannot be written: {error.strerror or error}") from error

    def __enter__(self) -> AnswerFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, line: bytes) -> None:
        """Adds a line, which is in the file when this returns; raises NoAnswer."""
        try:
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            raise NoAnswer(f"{self._path} cannot be written: {error.strerror or error}") from error

    def _read(self) -> None:
        self._file.seek(0)
        end = 0
        for number, line in enumerate(self._file, start=1):
            beginning = line[: len(_BEGINNING)]
            is_cut = not line.endswith(b"\n")  # the command was killed while it wrote this line
            try:
                if not _BEGINNING.startswith(beginning) or (not is_cut and beginning != _BEGINNING):
                    raise ValueError(line[:100])
                if is_cut:
                    break
                self.answered.add(orjson.loads(line)["custom_id"])
            except (ValueError, KeyError, TypeError) as error:
                raise NoAnswer(f"{self._path}, line {number}, is no answer; nothing was changed") from error
            end += len(line)
        self._file.seek(0, os.SEEK_END)
        if self._file.tell() > end:
            self._file.truncate(end)
