"""Lines of a batch's files: requests, answers and errors, in OpenAI's form."""

from __future__ import annotations

import secrets
from typing import Any, NamedTuple

import orjson

from server.protocol.errors import ApiError, shorten
from server.protocol.json_limits import parse_json
from server.storage.batch_table import TokenCounts

MAX_CUSTOM_ID_CHARS = 512
_FIELDS = ("custom_id", "method", "url", "body")
NO_TOKENS = TokenCounts()


class LineError(ValueError):
    """A line is no request; `code` and `param` are for the batch's list of errors."""

    def __init__(self, message: str, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.param = param


class LineRequest(NamedTuple):
    """A request of a batch."""

    custom_id: str
    url: str
    body: dict[str, Any]

    @classmethod
    def parse(cls, line: bytes) -> LineRequest:
        """Parses a line without checking its body; raises LineError."""
        try:
            value = parse_json(line, "line")
        except ApiError as error:
            raise LineError(error.message, "invalid_json_line") from error
        if not isinstance(value, dict):
            raise LineError("the line is no JSON object", "invalid_json_line")
        for name in _FIELDS:
            if name not in value:
                raise LineError(f"{name} is required", "missing_required_parameter", name)
        custom_id, method, url, body = (value[name] for name in _FIELDS)
        if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= MAX_CUSTOM_ID_CHARS:
            raise LineError(
                f"custom_id is {shorten(custom_id)}; it must be a string of 1 to {MAX_CUSTOM_ID_CHARS} characters",
                "invalid_custom_id", "custom_id",
            )  # fmt: skip
        if method != "POST":
            raise LineError(f"method is {shorten(method)}; it must be POST", "invalid_method", "method")
        if not isinstance(url, str):
            raise LineError(f"url is {shorten(url)}; it must be a string", "invalid_url", "url")
        if not isinstance(body, dict):
            raise LineError(f"body is {shorten(body)}; it must be an object", "invalid_body", "body")
        return cls(custom_id, url, body)


class LineAnswer(NamedTuple):
    """The answer to a request of a batch: what a route would have answered."""

    status: int
    request_id: str
    body: bytes  # JSON
    usage: TokenCounts = NO_TOKENS

    @property
    def has_failed(self) -> bool:
        return self.status >= 400

    def to_line(self, custom_id: str) -> bytes:
        """The line of the file of answers, or of errors."""
        response = {"status_code": self.status, "request_id": self.request_id, "body": orjson.Fragment(self.body)}
        return _line(custom_id, response, None)


def error_line(custom_id: str, code: str, message: str) -> bytes:
    """The line of a request that was not computed."""
    return _line(custom_id, None, {"code": code, "message": message})


def _line(custom_id: str, response: dict[str, Any] | None, error: dict[str, Any] | None) -> bytes:
    line = {"id": f"batch_req_{secrets.token_hex(12)}", "custom_id": custom_id, "response": response, "error": error}
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


def token_counts(usage: dict[str, Any] | None) -> TokenCounts:
    """The counts of a `usage` object of any route."""
    if not usage:
        return NO_TOKENS
    cached = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    details = usage.get("completion_tokens_details") or usage.get("output_tokens_details") or {}
    return TokenCounts(
        usage.get("prompt_tokens") or usage.get("input_tokens") or 0,
        cached.get("cached_tokens") or 0,
        usage.get("completion_tokens") or usage.get("output_tokens") or 0,
        details.get("reasoning_tokens") or 0,
    )
