"""The JSON objects that all of OpenAI's routes share: usage, metrics, errors, progress."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any, NamedTuple

import orjson

from engine.interface.types import PromptProgress
from server.generation.answers import Timings, Usage
from server.protocol.errors import ApiError, ContextLengthExceeded
from server.startup.version import system_fingerprint


class ResponseHead(NamedTuple):
    """The first fields of every chunk and answer."""

    id: str
    created: int  # seconds since the epoch
    model: str

    @classmethod
    def make(cls, prefix: str, request_id: str, model: str) -> ResponseHead:
        return cls(f"{prefix}-{request_id}", int(time.time()), model)

    def to_dict(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": system_fingerprint(),
        }

    def encode(self, kind: str) -> bytes:
        """The beginning of a JSON object, open for more keys."""
        return orjson.dumps(self.to_dict(kind))[:-1]


def usage_object(usage: Usage, num_reasoning_tokens: int | None = None) -> dict[str, object]:
    """The `usage` object. `num_reasoning_tokens` are part of the completion; None where reasoning is not parsed."""
    body: dict[str, object] = {
        "prompt_tokens": usage.num_prompt_tokens,
        "completion_tokens": usage.num_completion_tokens,
        "total_tokens": usage.num_prompt_tokens + usage.num_completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.num_cached_tokens},
    }
    if num_reasoning_tokens is not None:
        body["completion_tokens_details"] = {"reasoning_tokens": num_reasoning_tokens}
    return body


def metrics_object(timings: Timings) -> dict[str, float | None]:
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


def stop_reason(matched: str | int | None, stop_token_ids: Collection[int]) -> str | int | None:
    """vLLM's `stop_reason`: what has ended an answer, if the request has asked for it."""
    return matched if isinstance(matched, str) or matched in stop_token_ids else None


def error_object(error: ApiError, _request_id: str | None = None) -> dict[str, Any]:
    """The body of an error, `{"error": {…}}`. The request's id is in a header, not here."""
    body: dict[str, Any] = {
        "message": error.message, "type": error.type, "param": error.param, "code": error.code
    }  # fmt: skip
    if isinstance(error, ContextLengthExceeded):  # llama.cpp's fields, by which its clients shorten the prompt
        body |= {"n_prompt_tokens": error.num_tokens, "n_ctx": error.limit}
    return {"error": body}


def progress_object(progress: PromptProgress, index: int) -> dict[str, Any]:
    """The `prompt_progress` object of the answer `index`: llama.cpp's four fields, and further ones."""
    body: dict[str, Any] = {
        "index": index,
        "stage": progress.stage,
        "queue_position": progress.queue_position,
        "estimated_seconds": progress.estimated_seconds,
        "total": progress.num_prompt_tokens,
        "cache": progress.num_cached_tokens,
        "processed": progress.num_processed_tokens,
        "time_ms": round(progress.milliseconds),
    }
    return body if progress.detail is None else {**body, "detail": progress.detail}
