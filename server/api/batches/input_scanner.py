"""Reads a batch's input file piece by piece, and finds its requests or what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from server.api.batches.batch_lines import LineError, LineRequest
from server.protocol.errors import ApiError, shorten
from server.storage.batch_table import BatchLine, DuplicateId

MAX_LINES = 50_000  # of one batch, as in OpenAI's API
MAX_ERRORS = 20  # that are found before a file is given up
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class InputScanner:
    """Splits a file into lines and checks each but for the body of its request.

    Args:
        endpoint: the URL that every line must have.
        max_line_bytes: of one line.
        check_model: raises ApiError for the name of a model that is not served, None for the first one.
    """

    def __init__(self, endpoint: str, max_line_bytes: int, check_model: Callable[[str | None], object]) -> None:
        self._endpoint = endpoint
        self._max_line_bytes = max_line_bytes
        self._check_model = check_model
        self._rest = b""  # the beginning of a line
        self._start = 0  # of the rest in the file
        self._num_lines = 0  # blank ones included
        self._num_requests = 0
        self._model: str | None = None
        self.errors: list[dict[str, Any]] = []
        self.is_given_up = False  # so much is wrong that nothing more is read

    @property
    def model(self) -> str | None:
        """The model that all requests name."""
        return self._model

    def feed(self, data: bytes) -> list[BatchLine]:
        """The requests of the lines that end in `data`, the next piece of the file."""
        *ended, self._rest = (self._rest + data).split(b"\n")
        found = [line for line in map(self._read, ended) if line is not None and not self.is_given_up]
        if len(self._rest) > self._max_line_bytes:
            self._num_lines += 1
            self._give_up(self._too_long())
        return found

    def finish(self) -> list[BatchLine]:
        """The request of the last line where no newline ends it. A file without requests is an error."""
        line, self._rest = self._rest, b""
        found = None if self.is_given_up else self._read(line)
        if not self._num_requests and not self.errors:
            self._note(LineError("the file has no requests", "empty_file"), None)
        return [] if found is None else [found]

    def refuse(self, duplicate: DuplicateId) -> None:
        """Notes that a custom_id was there before."""
        error = LineError(
            f"custom_id {shorten(duplicate.custom_id)} is that of an earlier line", "duplicate_custom_id", "custom_id"
        )
        self._note(error, duplicate.line)

    def refuse_all(self) -> None:
        """Notes that there is no room for the lines."""
        message = "there is no room for the lines of this batch. Delete files, or wait until other batches end"
        self._note(LineError(message, "files_full"), None)
        self._rest = b""
        self.is_given_up = True

    def _read(self, line: bytes) -> BatchLine | None:
        start, size = self._start, len(line)
        self._start += size + 1
        self._num_lines += 1
        if self.is_given_up:
            return None
        if start == 0 and line.startswith(_BYTE_ORDER_MARK):
            start, size, line = 3, size - 3, line[3:]
        is_blank = not line or line.isspace()
        self._num_requests += not is_blank
        if self._num_requests > MAX_LINES or self._num_lines > 2 * MAX_LINES:
            self._give_up(LineError(f"the file has more than {MAX_LINES} lines, the limit", "too_many_lines"))
            return None
        if is_blank:
            return None
        try:
            return BatchLine(self._num_lines, start, size, 0, self._check(line))
        except LineError as error:
            self._note(error, self._num_lines)
            return None

    def _check(self, line: bytes) -> str:
        if len(line) > self._max_line_bytes:
            raise self._too_long()
        request = LineRequest.parse(line)
        if request.url != self._endpoint:
            raise LineError(
                f"url is {shorten(request.url)}; it must be the endpoint of the batch, {self._endpoint}",
                "mismatched_endpoint", "url",
            )  # fmt: skip
        model = request.body.get("model")
        if model is not None and not isinstance(model, str):
            raise LineError(f"body.model is {shorten(model)}; it must be a string", "invalid_model", "body.model")
        if self._num_requests == 1:
            self._model = model
            try:
                self._check_model(model)
            except ApiError as error:
                raise LineError(error.message, error.code or "model_not_found", "body.model") from error
        elif model != self._model:
            raise LineError(
                f"body.model is {shorten(model)}; it must be that of the first line, {shorten(self._model)}",
                "mismatched_model", "body.model",
            )  # fmt: skip
        return request.custom_id

    def _too_long(self) -> LineError:
        return LineError(
            f"the line has more than {self._max_line_bytes} bytes, the limit of this server", "line_too_long"
        )

    def _give_up(self, error: LineError) -> None:
        self._note(error, self._num_lines)
        self._rest = b""
        self.is_given_up = True

    def _note(self, error: LineError, line: int | None) -> None:
        if not self.is_given_up:
            self.errors.append({"code": error.code, "message": error.message, "param": error.param, "line": line})
            self.is_given_up = len(self.errors) == MAX_ERRORS
