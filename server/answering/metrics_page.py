"""What GET /metrics shows: the figures of every model, and those of the process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from server.answering.metrics import Metrics


class HasModelName(Protocol):
    """Whose figures they are."""

    @property
    def model_name(self) -> str: ...


class MetricsPage(Collector):
    """All figures in Prometheus' text format; those of a model have its name in the label `model`."""

    def __init__(self, models: Mapping[Metrics, HasModelName]) -> None:
        self._models = models
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def render(self) -> bytes:
        """Text format 1.0.0, encoded."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for metrics, model in self._models.items():
            for family in metrics.collect(model.model_name):
                if family.name in families:
                    families[family.name].samples += family.samples  # the format wants a family in one piece
                else:
                    families[family.name] = family
        yield from families.values()
        yield GaugeMetricFamily("eagre_asyncio_tasks", "Tasks of the asyncio loop", _count_tasks())


def _count_tasks() -> int:
    """0 outside an asyncio loop."""
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return 0
