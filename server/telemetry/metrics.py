"""Prometheus metrics of one model: latencies as the clients see them, and the engine's own counters."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from engine.interface.types import STEP_TOKEN_BOUNDS, EngineError, EngineStats, FinishReason
from server.generation.answers import GenerationStats
from server.generation.observer import GenerationObserver
from server.generation.output_sequence import Delta, OutputSequence
from server.generation.prompts import PreparedPrompt

# seconds
_FIRST_TOKEN_BOUNDS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
_INTER_TOKEN_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 5)
_E2E_BOUNDS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 60, 120, 240, 480, 960, 1920)


_PREFILL_BOUNDS = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_COUNT_BOUNDS = (1, 2, 5, 10, 20)
_TOKEN_BOUNDS = tuple(digit * 10**power for power in range(6) for digit in (1, 2, 5))


class AdapterUse(NamedTuple):
    """Which adapters of a model requests are about."""

    num_slots: int  # that many can be in memory
    running: Sequence[str]  # those that requests use
    waiting: Sequence[str]  # those that requests wait for, until they are in memory


class Histogram:
    """Counts in buckets, without the lock of prometheus_client's, which is dear where every token is an observation."""

    def __init__(self, name: str, documentation: str, bounds: Sequence[float]) -> None:
        if sorted(set(bounds)) != list(bounds):
            raise ValueError(f"the bounds of {name} are {list(bounds)}; they must ascend")
        self.name = name
        self.documentation = documentation
        self._bounds = tuple(bounds)  # upper and inclusive
        self._counts = [0] * (len(bounds) + 1)  # the last counts what is above every bound
        self._sum = 0.0

    def observe(self, value: float, weight: int = 1) -> None:
        """Counts `value` as `weight` observations."""
        self._counts[bisect_left(self._bounds, value)] += weight
        self._sum += value * weight

    @property
    def count(self) -> int:
        return sum(self._counts)

    @property
    def sum(self) -> float:
        return self._sum

    def collect(self, model: str) -> HistogramMetricFamily:
        """The histogram as Prometheus reads it: cumulative counts by upper bound, with the label `model`."""
        return histogram_family(self.name, self.documentation, self._bounds, self._counts, self._sum, model)


def histogram_family(
    name: str, documentation: str, bounds: Sequence[float], counts: Sequence[int], total: float, model: str
) -> HistogramMetricFamily:
    """A histogram of the counts between the bounds and above the last one, with the label `model`."""
    names = [*(str(bound) for bound in bounds), "+Inf"]
    buckets = list(zip(names, map(float, accumulate(counts)), strict=True))
    family = HistogramMetricFamily(name, documentation, labels=["model"])
    family.add_metric([model], buckets, sum_value=total)
    return family


class Metrics(GenerationObserver):
    """The metrics of one served model. The asyncio loop alone writes and reads them, so there are no locks."""

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
        self.queue_time = Histogram(
            "eagre_request_queue_time_seconds", "From a request's submission to its first step", _FIRST_TOKEN_BOUNDS
        )
        self.prefill_time = Histogram(
            "eagre_request_prefill_time_seconds", "From a request's first step to its first token", _PREFILL_BOUNDS
        )
        self.decode_time = Histogram(
            "eagre_request_decode_time_seconds", "From a choice's first token to its last", _PREFILL_BOUNDS
        )
        self.inference_time = Histogram(
            "eagre_request_inference_time_seconds", "From a request's first step to its last token", _PREFILL_BOUNDS
        )
        self.prompt_tokens = Histogram("eagre_request_prompt_tokens", "Prompt tokens of a choice", _TOKEN_BOUNDS)
        self.generation_tokens = Histogram(
            "eagre_request_generation_tokens", "Tokens of a choice that has ended", _TOKEN_BOUNDS
        )
        self.most_generation_tokens = Histogram(
            "eagre_request_max_num_generation_tokens", "Tokens of a request's longest choice", _TOKEN_BOUNDS
        )
        self.params_n = Histogram("eagre_request_params_n", "Choices of a prompt", _COUNT_BOUNDS)
        self.params_max_tokens = Histogram(
            "eagre_request_params_max_tokens", "Most tokens that a choice may have", _TOKEN_BOUNDS
        )
        self.num_finished: Counter[FinishReason] = Counter()  # choices
        self._histograms = (
            self.time_to_first_token, self.inter_token_latency, self.e2e_request_latency, self.queue_time,
            self.prefill_time, self.decode_time, self.inference_time, self.prompt_tokens, self.generation_tokens,
            self.most_generation_tokens, self.params_n, self.params_max_tokens,
        )  # fmt: skip
        self.num_prompt_tokens = 0
        self.num_generation_tokens = 0
        self.most_sequence_tokens = 0  # of a prompt and its answer
        self._engine_stats: Callable[[], EngineStats] = EngineStats
        self._adapter_use: Callable[[], AdapterUse] | None = None

    def watch_engine(self, stats: Callable[[], EngineStats]) -> None:
        """Calls `stats` at every scrape from now on, for the engine's counters and gauges."""
        self._engine_stats = stats

    def watch_adapters(self, use: Callable[[], AdapterUse]) -> None:
        """Calls `use` at every scrape from now on, for a model that takes adapters."""
        self._adapter_use = use

    @property
    def engine_stats(self) -> EngineStats:
        """The engine's counters and gauges."""
        return self._engine_stats()

    def submitted(self, prompts: Sequence[PreparedPrompt]) -> None:
        for prompt in prompts:
            num_tokens, num_choices = len(prompt.token_ids), len(prompt.params)
            self.num_prompt_tokens += num_tokens
            self.prompt_tokens.observe(num_tokens, num_choices)
            self.params_n.observe(num_choices)
            self.params_max_tokens.observe(prompt.params[0].max_tokens, num_choices)

    def add_prompt_tokens(self, num_tokens: int) -> None:
        """Counts the tokens of texts that are embedded or scored."""
        self.num_prompt_tokens += num_tokens

    def tokens(self, sequence: OutputSequence, token_ids: Sequence[int], deltas: Sequence[Delta], now: float) -> None:
        num_tokens, last = len(token_ids), sequence.last_token_at
        if sequence.finish_reason is not None:
            self._note_end(sequence, now if num_tokens or last is None else last)
        if not num_tokens:
            return
        self.num_generation_tokens += num_tokens
        if last is not None:  # tokens that came together count as so many equal intervals
            self.inter_token_latency.observe((now - last) / num_tokens, num_tokens)
            return
        self.time_to_first_token.observe(now - sequence.submitted_at)
        if sequence.stream.admitted_at is not None:
            self.queue_time.observe(max(sequence.stream.admitted_at - sequence.submitted_at, 0.0))

    def _note_end(self, sequence: OutputSequence, last_token_at: float) -> None:
        self.generation_tokens.observe(sequence.num_tokens)
        began, first = sequence.stream.admitted_at, sequence.first_token_at
        if began is not None and first is not None:
            self.prefill_time.observe(max(first - began, 0.0))
            self.decode_time.observe(last_token_at - first)
            self.inference_time.observe(max(last_token_at - began, 0.0))

    def finished(self, stats: GenerationStats | None, error: BaseException | None) -> None:
        if stats is None:
            return
        for reason in stats.finish_reasons:
            if reason is not None:
                self.num_finished[reason] += 1
            elif not isinstance(error, EngineError):
                self.num_finished[FinishReason.ABORT] += 1  # the client has left
        self.most_sequence_tokens = max(self.most_sequence_tokens, stats.usage.num_prompt_tokens + stats.most_tokens)
        if None not in stats.finish_reasons:
            self.e2e_request_latency.observe(stats.duration)
            self.most_generation_tokens.observe(stats.most_tokens)

    def collect(self, model: str) -> Iterator[Metric]:
        """Every figure with the label `model`."""
        for histogram in self._histograms:
            yield histogram.collect(model)
        finished = CounterMetricFamily(
            "eagre_request_success", "Choices that ended, by reason", labels=["model", "finish_reason"]
        )
        for reason in FinishReason:
            if reason is not FinishReason.ERROR:
                finished.add_metric([model, reason], self.num_finished[reason])
        yield finished
        counted = (
            ("eagre_prompt_tokens", "Prompt tokens of accepted requests", self.num_prompt_tokens),
            ("eagre_generation_tokens", "Tokens delivered", self.num_generation_tokens),
        )
        for name, documentation, value in counted:
            yield _labelled(CounterMetricFamily, name, documentation, model, value)
        stats = self.engine_stats
        for figure in _ENGINE_FIGURES:
            yield _labelled(figure.family, figure.name, figure.documentation, model, figure.read(stats))
        yield histogram_family(
            "eagre_iteration_tokens_total",
            "Tokens of a step",
            STEP_TOKEN_BOUNDS,
            stats.step_token_counts or [0] * (len(STEP_TOKEN_BOUNDS) + 1),
            stats.num_step_tokens,
            model,
        )
        yield _cache_config(model, stats)
        if self._adapter_use is not None:
            yield _adapters_info(model, self._adapter_use())


class _Figure(NamedTuple):
    """One of the engine's figures on the metrics page."""

    family: type[CounterMetricFamily] | type[GaugeMetricFamily]
    name: str
    documentation: str
    read: Callable[[EngineStats], float]


_ENGINE_FIGURES = (
    _Figure(GaugeMetricFamily, "eagre_num_requests_running", "Requests in slots", attrgetter("num_running")),
    _Figure(GaugeMetricFamily, "eagre_num_requests_waiting", "Requests in the queue", attrgetter("num_waiting")),
    _Figure(
        GaugeMetricFamily,
        "eagre_num_tokens_waiting",
        "Prompt tokens of requests that have not begun",
        attrgetter("num_waiting_tokens"),
    ),
    _Figure(
        GaugeMetricFamily,
        "eagre_kv_cache_usage_perc",
        "Share of the pages in use, 0 to 1",
        attrgetter("kv_cache_usage"),
    ),
    _Figure(
        CounterMetricFamily,
        "eagre_num_preemptions",
        "Requests sent back to the queue",
        attrgetter("num_preemptions"),
    ),
    _Figure(
        CounterMetricFamily,
        "eagre_prefix_cache_queries",
        "Prompt tokens looked up in the prefix cache",
        attrgetter("prefix_cache_queries"),
    ),
    _Figure(
        CounterMetricFamily,
        "eagre_prefix_cache_hits",
        "Prompt tokens found in the prefix cache",
        attrgetter("prefix_cache_hits"),
    ),
    _Figure(
        CounterMetricFamily,
        "eagre_mm_cache_queries",
        "Pictures looked up among those that are encoded",
        attrgetter("mm_cache_queries"),
    ),
    _Figure(
        CounterMetricFamily,
        "eagre_mm_cache_hits",
        "Pictures found there",
        attrgetter("mm_cache_hits"),
    ),
    _Figure(CounterMetricFamily, "eagre_encoder_runs", "Pictures that were encoded", attrgetter("encoder_runs")),
    _Figure(
        CounterMetricFamily,
        "eagre_prefix_cache_imported_tokens",
        "Tokens whose pages were read from the folder of kept prefixes",
        attrgetter("kept.num_imported_tokens"),
    ),
    _Figure(
        CounterMetricFamily,
        "eagre_prefix_cache_imported_bytes",
        "Bytes of pages that were read from the folder of kept prefixes",
        attrgetter("kept.num_imported_bytes"),
    ),
    _Figure(
        CounterMetricFamily,
        "eagre_prefix_cache_exported_bytes",
        "Bytes of pages that were written to the folder of kept prefixes",
        attrgetter("kept.num_exported_bytes"),
    ),
    _Figure(
        CounterMetricFamily,
        "eagre_prefix_cache_damaged_pages",
        "Kept pages that were not what was written, and were computed again",
        attrgetter("kept.num_damaged_pages"),
    ),
    _Figure(
        GaugeMetricFamily,
        "eagre_prefix_cache_kept_bytes",
        "Bytes in the folder of kept prefixes, of all models",
        attrgetter("kept.num_kept_bytes"),
    ),
    _Figure(
        CounterMetricFamily,
        "eagre_compiles_after_ready",
        "Compilations after readiness; a defect unless 0",
        attrgetter("compiles_after_ready"),
    ),
    _Figure(CounterMetricFamily, "eagre_steps", "Steps of the engine", attrgetter("num_steps")),
    _Figure(
        CounterMetricFamily,
        "eagre_device_busy_seconds",
        "Time in which the device computed steps",
        attrgetter("device_busy_seconds"),
    ),
    _Figure(
        CounterMetricFamily,
        "eagre_device_idle_seconds",
        "Time in which the device stood idle while work waited",
        attrgetter("device_idle_seconds"),
    ),
    _Figure(
        GaugeMetricFamily,
        "eagre_device_idle_fraction",
        "Idle share of the last steps' time in which there was work, 0 to 1",
        attrgetter("device_idle_fraction"),
    ),
    _Figure(
        GaugeMetricFamily,
        "eagre_step_time_error",
        "Difference between the measured and the predicted duration of the last steps, as a share of the measured one",
        attrgetter("step_time_error"),
    ),
    _Figure(
        GaugeMetricFamily,
        "eagre_prompt_share",
        "Share of the last steps' time that prompts took, 0 to 1",
        attrgetter("prompt_share"),
    ),
)


def _labelled(kind: type[CounterMetricFamily] | type[GaugeMetricFamily], name: str, documentation: str,
              model: str, value: float) -> Metric:  # fmt: skip
    family = kind(name, documentation, labels=["model"])
    family.add_metric([model], value)
    return family


def _cache_config(model: str, stats: EngineStats) -> Metric:
    """The page size and the number of pages, for routers, as labels of a gauge that is always 1, as in vLLM.

    A page of one group of layers counts as its share of one of all layers, so that the product is in tokens.
    """
    family = GaugeMetricFamily(
        "eagre_cache_config_info", "The page pool; always 1", labels=["model", "block_size", "num_gpu_blocks"]
    )
    family.add_metric([model, str(stats.page_size), str(stats.num_pages // stats.num_page_groups)], 1)
    return family


def _adapters_info(model: str, use: AdapterUse) -> Metric:
    """The adapters in use as labels, joined by commas, of a gauge that is the time in seconds since 1970, as in vLLM.

    Balancers that know vLLM's name prefer the servers that have an adapter in memory already.
    """
    family = GaugeMetricFamily(
        "eagre_lora_requests_info",
        "The adapters that requests use and wait for; the time of the page",
        labels=["model", "max_lora", "running_lora_adapters", "waiting_lora_adapters"],
    )
    family.add_metric([model, str(use.num_slots), ",".join(use.running), ",".join(use.waiting)], time.time())
    return family
