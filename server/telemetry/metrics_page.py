"""What GET /metrics shows: the figures of every model, and those of the process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from server.admission.limits.key_account import KeyAccount
from server.startup.settings import MetricsNames
from server.telemetry.key_metrics import key_metrics
from server.telemetry.llama_cpp_figures import LlamaCppFigures
from server.telemetry.metrics import Metrics
from server.telemetry.vllm_names import named


class HasModelName(Protocol):
    """Something with the name of a served model."""

    @property
    def model_name(self) -> str: ...


class ProcessGauge(NamedTuple):
    """A gauge of the whole process, without the label `model`."""

    name: str
    documentation: str
    read: Callable[[], float]


class MetricsPage(Collector):
    """All figures in Prometheus' text format; those of a model have its name in the label `model`."""

    def __init__(
        self,
        models: Mapping[Metrics, HasModelName],
        names: MetricsNames = MetricsNames.EAGRE,
        gauges: Sequence[ProcessGauge] = (),
    ) -> None:
        self._gauges = (*gauges, ProcessGauge("eagre_asyncio_tasks", "Tasks of the asyncio loop", _count_tasks))
        self._models = models
        self._names = names
        self._llama_cpp = LlamaCppFigures(list(models)) if names is MetricsNames.LLAMA_CPP else None
        self._accounts: Callable[[], Sequence[KeyAccount]] = tuple
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def watch_keys(self, accounts: Callable[[], Sequence[KeyAccount]]) -> None:
        """Calls `accounts` at every scrape from now on, for what the keys have used."""
        self._accounts = accounts

    def render(self) -> bytes:
        """Text format 1.0.0, encoded."""
        page = generate_latest(self._registry)
        return page if self._llama_cpp is None else page + self._llama_cpp.render()

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for metrics, model in self._models.items():
            for family in metrics.collect(model.model_name):
                if family.name in families:
                    families[family.name].samples += family.samples  # the format wants a family in one piece
                else:
                    families[family.name] = family
        for family in families.values():
            yield from named(family, self._names)
        if self._names in (MetricsNames.VLLM, MetricsNames.BOTH) and families:
            yield _hit_rate(families["eagre_prefix_cache_queries"], families["eagre_prefix_cache_hits"])
        for gauge in self._gauges:
            yield GaugeMetricFamily(gauge.name, gauge.documentation, gauge.read())
        yield from key_metrics(self._accounts())


def _hit_rate(queries: Metric, hits: Metric) -> Metric:
    """The share of looked up prompt tokens that were found, 0 to 1, which old routers of vLLM still read.

    `queries` and `hits` are families of Eagre's names, with one sample a model, in the same order.
    """
    name = "vllm:gpu_prefix_cache_hit_rate"
    family = GaugeMetricFamily(name, "Share of prompt tokens found in the prefix cache, 0 to 1", labels=["model_name"])
    for queried, found in zip(queries.samples, hits.samples, strict=True):
        family.add_metric([queried.labels["model"]], found.value / queried.value if queried.value else 0.0)
    return family


def _count_tasks() -> int:
    """Counts the asyncio tasks; 0 outside a loop."""
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return 0
