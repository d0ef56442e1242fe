"""llama.cpp's metrics, for dashboards that are made for it: its names and meanings, over the figures of all models.

They have no labels, and two are rates since they were last read (tools/server/README.md in that project).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from engine.interface.types import EngineStats
from server.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True)
class _Totals:
    """What has been counted so far, of all models together."""

    prompt_tokens: int = 0  # computed, not those from the prefix cache
    cached_tokens: int = 0
    prompt_seconds: float = 0.0
    predicted_tokens: int = 0
    predicted_seconds: float = 0.0  # from an answer's first token to its last
    decoded_tokens: int = 0  # of these seconds: an answer's first token comes of its prompt
    steps: int = 0
    output_tokens: int = 0
    running: int = 0
    waiting: int = 0
    longest: int = 0

    @classmethod
    def of(cls, each: Sequence[Metrics]) -> _Totals:
        stats: Sequence[EngineStats] = [metrics.engine_stats for metrics in each]
        cached = sum(one.prefix_cache_hits for one in stats)
        predicted = sum(metrics.num_generation_tokens for metrics in each)
        return cls(
            prompt_tokens=max(sum(one.num_prompt_tokens for one in stats) - cached, 0),
            cached_tokens=cached,
            prompt_seconds=sum(metrics.prefill_time.sum for metrics in each),
            predicted_tokens=predicted,
            predicted_seconds=sum(metrics.decode_time.sum for metrics in each),
            decoded_tokens=max(predicted - sum(metrics.time_to_first_token.count for metrics in each), 0),
            steps=sum(one.num_steps for one in stats),
            output_tokens=sum(one.num_generation_tokens for one in stats),
            running=sum(one.num_running for one in stats),
            waiting=sum(one.num_waiting for one in stats),
            longest=max((metrics.most_sequence_tokens for metrics in each), default=0),
        )


class LlamaCppFigures:
    """Writes llama.cpp's figures as text, and remembers what they were when they were last read."""

    def __init__(self, each: Sequence[Metrics]) -> None:
        self._each = each
        self._last = _Totals()

    def render(self) -> bytes:
        """The figures in Prometheus' text format. prometheus_client would have each counter end with `_total`."""
        now, last = _Totals.of(self._each), self._last
        self._last = now
        counters: Mapping[str, tuple[str, float]] = {
            "prompt_tokens_total": ("Prompt tokens computed", now.prompt_tokens),
            "prompt_tokens_cached_total": ("Prompt tokens from the prefix cache", now.cached_tokens),
            "prompt_seconds_total": ("Time that prompts took", now.prompt_seconds),
            "tokens_predicted_total": ("Tokens generated", now.predicted_tokens),
            "tokens_predicted_seconds_total": ("Time that tokens behind the first took", now.predicted_seconds),
            "n_decode_total": ("Steps of the engine", now.steps),
            "n_tokens_max": ("Most tokens of a prompt and its answer", now.longest),
            "spec_decode_num_draft_tokens_total": ("Tokens of drafts", 0),
            "spec_decode_num_accepted_tokens_total": ("Tokens of drafts that were accepted", 0),
            "spec_decode_num_drafts_total": ("Drafts", 0),
        }
        prompt_rate = _rate(now.prompt_tokens - last.prompt_tokens, now.prompt_seconds - last.prompt_seconds)
        rate = _rate(now.decoded_tokens - last.decoded_tokens, now.predicted_seconds - last.predicted_seconds)
        gauges: Mapping[str, tuple[str, float]] = {
            "prompt_tokens_seconds": ("Prompt tokens per second since these figures were last read", prompt_rate),
            "predicted_tokens_seconds": ("Tokens per second since these figures were last read", rate),
            "requests_processing": ("Requests in slots", now.running),
            "requests_deferred": ("Requests in the queue", now.waiting),
            "n_busy_slots_per_decode": (
                "Tokens of answers in a step, on average",
                now.output_tokens / max(now.steps, 1),
            ),
        }
        lines = [*_lines("counter", counters), *_lines("gauge", gauges)]
        return "".join(f"{line}\n" for line in lines).encode()


def _rate(num_tokens: int, seconds: float) -> float:
    return num_tokens / seconds if seconds > 0 else 0.0


def _lines(kind: str, figures: Mapping[str, tuple[str, float]]) -> Iterator[str]:
    for name, (documentation, value) in figures.items():
        yield f"# HELP llamacpp:{name} {documentation}"
        yield f"# TYPE llamacpp:{name} {kind}"
        yield f"llamacpp:{name} {float(value)}"
