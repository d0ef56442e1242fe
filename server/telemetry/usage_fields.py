"""Token counts and latency of a generation as fields of its request's log events."""

from __future__ import annotations

from server.generation.answers import GenerationStats
from server.generation.observer import GenerationObserver
from server.startup.logs import note


class UsageFields(GenerationObserver):
    """Adds the figures to the later log events of the task that reads the generation, its access event among them."""

    def finished(self, stats: GenerationStats | None, error: BaseException | None) -> None:
        if stats is not None:
            ttft = stats.time_to_first_token
            note(
                prompt_tokens=stats.usage.num_prompt_tokens,
                completion_tokens=stats.usage.num_completion_tokens,
                finish_reason=stats.finish_reason,
                ttft=None if ttft is None else round(ttft, 6),
            )
