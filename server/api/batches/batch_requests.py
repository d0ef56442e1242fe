"""The body that creates a batch."""

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from server.api.batches.file_objects import LEAST_LIFETIME_S, MAX_LIFETIME_S
from server.api.responses.responses_request import Metadata
from server.protocol.base_models import RequestBody, StrictModel
from server.protocol.errors import shorten

ENDPOINTS = (
    "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/rerank", "/v1/score",
)  # fmt: skip
MAX_ID_CHARS = 64

_WINDOW = re.compile(r"([1-9][0-9]{0,5})([mhd])")
_SECONDS = {"m": 60, "h": 3600, "d": 86_400}
MAX_WINDOW_S = 30 * 86_400


def window_seconds(window: str) -> int:
    """The seconds of a completion window; raises ValueError."""
    found = _WINDOW.fullmatch(window)
    seconds = 0 if found is None else int(found[1]) * _SECONDS[found[2]]
    if not 0 < seconds <= MAX_WINDOW_S:
        raise ValueError(
            f"completion_window is {shorten(window)}; it must be 24h, or another number of m, h or d of at most 30d"
        )
    return seconds


def _as_window(value: Any) -> Any:
    if isinstance(value, str):
        window_seconds(value)
    return value


class ExpiresAfter(StrictModel):
    """When the files of a batch's answers expire."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=LEAST_LIFETIME_S, le=MAX_LIFETIME_S)]


class NewBatch(RequestBody):
    """The body that creates a batch."""

    input_file_id: Annotated[str, Field(max_length=MAX_ID_CHARS)]
    endpoint: str
    completion_window: Annotated[str, BeforeValidator(_as_window)] = "24h"
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = None

    @field_validator("endpoint")
    @classmethod
    def _is_known(cls, value: str) -> str:
        if value not in ENDPOINTS:
            raise ValueError(f"endpoint is {shorten(value)}; it must be one of {', '.join(ENDPOINTS)}")
        return value
