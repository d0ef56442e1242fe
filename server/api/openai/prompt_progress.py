"""How an answer waits for its first token, in the shape of llama.cpp's `prompt_progress`."""

from __future__ import annotations

from typing import Any

from engine.interface.types import PromptProgress


def shape_progress(progress: PromptProgress, index: int) -> dict[str, Any]:
    """The `prompt_progress` object: llama.cpp's four fields, and what it has nothing of.

    Args:
        index: of the answer.
    """
    told: dict[str, Any] = {
        "index": index,
        "stage": progress.stage,
        "queue_position": progress.queue_position,
        "estimated_seconds": progress.estimated_seconds,
        "total": progress.num_prompt_tokens,
        "cache": progress.num_cached_tokens,
        "processed": progress.num_processed_tokens,
        "time_ms": round(progress.milliseconds),
    }
    return told if progress.detail is None else {**told, "detail": progress.detail}
