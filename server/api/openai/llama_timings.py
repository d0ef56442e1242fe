"""llama.cpp's `timings`: of an answer so far, and of a prompt that is being computed."""

from __future__ import annotations

from typing import Any

from engine.interface.types import PromptProgress
from server.generation.answers import Timings
from server.generation.generation import Generation


def timings_of(generation: Generation) -> dict[str, Any]:
    """The `timings` of a generation so far; several answers share them."""
    usage = generation.usage
    return timings_object(
        generation.timings,
        usage.num_prompt_tokens,
        usage.num_cached_tokens,
        usage.num_completion_tokens,
        generation.duration,
    )


def timings_object(
    timings: Timings | None, num_prompt: int, num_cached: int, num_predicted: int, seconds: float
) -> dict[str, Any]:
    """llama.cpp's `timings`; several answers share the `seconds` that they took together.

    The first token comes of the prompt's last step, so the rate of generation counts the tokens behind it.
    """
    prompt_s = seconds if timings is None else timings.time_to_first_token - timings.queue_time
    predicted_s = seconds if timings is None else timings.generation_time - prompt_s
    num_computed, num_steps = max(num_prompt - num_cached, 0), max(num_predicted - 1, 0)
    predicted_ms = 1000 * max(predicted_s, 1e-9) if num_steps else 0.0
    return {
        "cache_n": num_cached,
        "prompt_n": num_computed,
        "prompt_ms": 1000 * prompt_s,
        "prompt_per_token_ms": 1000 * prompt_s / max(num_computed, 1),
        "prompt_per_second": num_computed / max(prompt_s, 1e-9),
        "predicted_n": num_predicted,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": predicted_ms / max(num_steps, 1),
        "predicted_per_second": 1000 / predicted_ms * num_steps if num_steps else 0.0,
    }


def progress_timings(progress: PromptProgress) -> dict[str, Any]:
    """llama.cpp's `timings` of a prompt that is being computed."""
    num_computed = max(progress.num_processed_tokens - progress.num_cached_tokens, 0)
    computed_ms = float(progress.milliseconds) if num_computed else 0.0
    return {
        "cache_n": progress.num_cached_tokens,
        "prompt_n": num_computed,
        "prompt_ms": computed_ms,
        "prompt_per_token_ms": computed_ms / max(num_computed, 1),
        "prompt_per_second": 1000 * num_computed / computed_ms if computed_ms else 0.0,
        "predicted_n": 0,
        "predicted_ms": 0.0,
        "predicted_per_token_ms": 0.0,
        "predicted_per_second": 0.0,
    }
