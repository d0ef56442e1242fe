"""What every object of one answer shares: its id, its time, its model."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import orjson

from server.answering.generation import Generation
from server.startup.logs import note


class AnswerHead(NamedTuple):
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


def note_progress(generation: Generation) -> None:
    """Adds the generation's counts to the request's access event."""
    usage = generation.usage
    ttft = generation.time_to_first_token
    note(
        prompt_tokens=usage.num_prompt_tokens,
        completion_tokens=usage.num_completion_tokens,
        finish_reason=generation.finish_reason,
        ttft=None if ttft is None else round(ttft, 6),
    )
