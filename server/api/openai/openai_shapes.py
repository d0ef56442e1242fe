"""What OpenAI's clients expect of every route in the same shape: heads, usage, reasons, errors."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import orjson

from server.generation.answers import Timings, Usage
from server.protocol.errors import ApiError


class AnswerHead(NamedTuple):
    """What every object of one answer begins with."""

    id: str
    created: int  # seconds since the epoch
    model: str

    @classmethod
    def make(cls, prefix: str, request_id: str, model: str) -> AnswerHead:
        return cls(f"{prefix}-{request_id}", int(time.time()), model)

    def to_dict(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def encode(self, kind: str) -> bytes:
        """The beginning of a JSON object, open for more keys."""
        return orjson.dumps(self.to_dict(kind))[:-1]


def shape_usage(usage: Usage, num_reasoning_tokens: int | None = None) -> dict[str, object]:
    """The `usage` object.

    Args:
        num_reasoning_tokens: of the completion tokens; None where no reasoning was looked for.
    """
    told: dict[str, object] = {
        "prompt_tokens": usage.num_prompt_tokens,
        "completion_tokens": usage.num_completion_tokens,
        "total_tokens": usage.num_prompt_tokens + usage.num_completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.num_cached_tokens},
    }
    if num_reasoning_tokens is not None:
        told["completion_tokens_details"] = {"reasoning_tokens": num_reasoning_tokens}
    return told


def shape_timings(timings: Timings) -> dict[str, float | None]:
    """The `metrics` object, with vLLM's names."""
    mean = timings.mean_inter_token_latency
    return {
        "time_to_first_token_ms": _milliseconds(timings.time_to_first_token),
        "queue_time_ms": _milliseconds(timings.queue_time),
        "generation_time_ms": _milliseconds(timings.generation_time),
        "mean_itl_ms": None if mean is None else _milliseconds(mean),
        "tokens_per_second": round(timings.tokens_per_second, 3),
    }


def _milliseconds(seconds: float) -> float:
    return round(1e3 * seconds, 3)


def encode_reason(reason: str | None) -> bytes:
    """A `finish_reason` as JSON."""
    return b"null" if reason is None else b'"%b"' % reason.encode()


def shape_error(error: ApiError, _request_id: str | None = None) -> dict[str, Any]:
    """The body of an error: `{"error": {…}}`, which does not tell the request's id; a header does."""
    return {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}}
