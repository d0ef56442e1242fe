"""A file of requests in OpenAI's form, of which only the places of its lines are in memory."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from server.api.batches.batch_lines import LineError, LineRequest
from server.cli.client.errors import NoAnswer
from server.protocol.errors import shorten


class Place(NamedTuple):
    """Where a request is in its file."""

    start: int
    size: int
    custom_id: str


class RequestFile:
    """A file whose lines are valid but for the bodies of their requests."""

    def __init__(self, path: Path, urls: Collection[str]) -> None:
        """Reads the whole file once.

        Args:
            urls: those that requests may have.

        Raises:
            NoAnswer: it cannot be read, or a line is no request.
        """
        self._path = path
        self.places: list[Place] = []
        known: set[str] = set()
        start = 0
        try:
            with path.open("rb") as file:
                for number, line in enumerate(file, start=1):
                    if line.strip():
                        request = self._parse(line, number)
                        if request.url not in urls:
                            raise NoAnswer(
                                f"{path}, line {number}: url is {shorten(request.url)}; it must be one of "
                                f"{', '.join(urls)}"
                            )
                        if request.custom_id in known:
                            raise NoAnswer(f"{path}, line {number}: an earlier line has the same custom_id")
                        known.add(request.custom_id)
                        self.places.append(Place(start, len(line), request.custom_id))
                    start += len(line)
        except OSError as error:
            raise NoAnswer(f"{path} cannot be read: {error.strerror or error}") from error

    def read(self, place: Place) -> LineRequest:
        """The request at a place; raises NoAnswer where the file was changed meanwhile."""
        try:
            with self._path.open("rb") as file:
                file.seek(place.start)
                request = LineRequest.parse(file.read(place.size))
        except (OSError, LineError) as error:
            raise NoAnswer(f"{self._path} was changed while its requests were answered: {error}") from error
        if request.custom_id != place.custom_id:
            raise NoAnswer(f"{self._path} was changed while its requests were answered")
        return request

    def _parse(self, line: bytes, number: int) -> LineRequest:
        try:
            return LineRequest.parse(line)
        except LineError as error:
            raise NoAnswer(f"{self._path}, line {number}: {error.message}") from error
