"""The figures of one model: latencies as the clients see them, and the engine's own counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from engine.border.types import EngineStats, FinishReason
from server.answering.histogram import Histogram

# seconds
_FIRST_TOKEN_BOUNDS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
_INTER_TOKEN_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 5)
_E2E_BOUNDS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 60, 120, 240, 480, 960, 1920)


class Metrics:
    """The figures of one served model. The asyncio loop alone writes and reads them, so there are no locks."""

    def __init__(self) -> None:
        self.time_to_first_token = Histogram(
            "eagre_time_to_first_token_seconds", "From a request's submission to its first token", _FIRST_TOKEN_BOUNDS
        )
        self.inter_token_latency = Histogram(
            "eagre_inter_token_latency_seconds", "Between two tokens of one choice", _INTER_TOKEN_BOUNDS
        )
        self.e2e_request_latency = Histogram(
            "eagre_e2e_request_latency_seconds", "From a request's submission to its end", _E2E_BOUNDS
        )
        self.num_finished: Counter[FinishReason] = Counter()  # choices
        self.num_prompt_tokens = 0
        self.num_generation_tokens = 0
        self._engine_stats: Callable[[], EngineStats] = EngineStats

    def watch_engine(self, stats: Callable[[], EngineStats]) -> None:
        """Takes the engine's figures from `stats` at every scrape from now on."""
        self._engine_stats = stats

    def collect(self, model: str) -> Iterator[Metric]:
        """Every figure with the label `model`."""
        yield self.time_to_first_token.collect(model)
        yield self.inter_token_latency.collect(model)
        yield self.e2e_request_latency.collect(model)
        finished = CounterMetricFamily(
            "eagre_request_success", "Choices that ended, by reason", labels=["model", "finish_reason"]
        )
        for reason in FinishReason:
            if reason is not FinishReason.ERROR:
                finished.add_metric([model, reason], self.num_finished[reason])
        yield finished
        yield _counter(model, "eagre_prompt_tokens", "Prompt tokens of accepted requests", self.num_prompt_tokens)
        yield _counter(model, "eagre_generation_tokens", "Tokens delivered", self.num_generation_tokens)
        yield from _of_engine(model, self._engine_stats())


def _counter(model: str, name: str, documentation: str, value: float) -> Metric:
    family = CounterMetricFamily(name, documentation, labels=["model"])
    family.add_metric([model], value)
    return family


def _gauge(model: str, name: str, documentation: str, value: float) -> Metric:
    family = GaugeMetricFamily(name, documentation, labels=["model"])
    family.add_metric([model], value)
    return family


def _of_engine(model: str, stats: EngineStats) -> Iterator[Metric]:
    yield _gauge(model, "eagre_num_requests_running", "Requests in slots", stats.num_running)
    yield _gauge(model, "eagre_num_requests_waiting", "Requests in the queue", stats.num_waiting)
    yield _gauge(model, "eagre_kv_cache_usage_perc", "Share of the pages in use, 0 to 1", stats.kv_cache_usage)
    yield _counter(model, "eagre_num_preemptions", "Requests sent back to the queue", stats.num_preemptions)
    yield _counter(
        model,
        "eagre_prefix_cache_queries",
        "Prompt tokens looked up in the prefix cache",
        stats.prefix_cache_queries,
    )
    yield _counter(model, "eagre_prefix_cache_hits", "Prompt tokens found in the prefix cache", stats.prefix_cache_hits)
    yield _counter(
        model,
        "eagre_compiles_after_ready",
        "Compilations after readiness; a defect unless 0",
        stats.compiles_after_ready,
    )
    yield _counter(model, "eagre_steps", "Steps of the engine", stats.num_steps)
    yield _counter(
        model,
        "eagre_device_busy_seconds",
        "Time in which the device computed steps",
        stats.device_busy_seconds,
    )
    yield _counter(
        model,
        "eagre_device_idle_seconds",
        "Time in which the device stood idle while work waited",
        stats.device_idle_seconds,
    )
    yield _gauge(
        model,
        "eagre_device_idle_fraction",
        "Idle share of the last steps' time in which there was work, 0 to 1",
        stats.device_idle_fraction,
    )
    yield _gauge(
        model,
        "eagre_step_time_error",
        "Difference between the measured and the predicted duration of the last steps, as a share of the measured one",
        stats.step_time_error,
    )
    yield _gauge(
        model,
        "eagre_prompt_share",
        "Share of the last steps' time that prompts took, 0 to 1",
        stats.prompt_share,
    )
