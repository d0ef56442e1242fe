"""Metrics of API keys, by their names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from server.admission.limits.key_account import KeyAccount, KeyUsage

MAX_NAMES = 200  # the keys behind them share the last name
OTHERS = "others"

_COUNTERS: tuple[tuple[str, str, Callable[[KeyUsage], int]], ...] = (
    ("eagre_key_requests", "Requests of the key", lambda usage: usage.num_requests),
    ("eagre_key_refused_requests", "Requests beyond the limits of the key", lambda usage: usage.num_refused),
    ("eagre_key_prompt_tokens", "Prompt tokens of the key", lambda usage: usage.num_prompt_tokens),
    ("eagre_key_generation_tokens", "Tokens of answers to the key", lambda usage: usage.num_completion_tokens),
    ("eagre_key_cached_tokens", "Prompt tokens from the prefix cache", lambda usage: usage.num_cached_tokens),
)


def key_metrics(accounts: Sequence[KeyAccount]) -> Iterator[Metric]:
    """Every figure with the label `key`, the name of the key; nothing where there are no keys."""
    if not accounts:
        return
    for name, documentation, read in _COUNTERS:
        counter = CounterMetricFamily(name, documentation, labels=["key"])
        for key, value in _by_name(accounts, lambda account, read=read: read(account.usage)):  # type: ignore[misc]
            counter.add_metric([key], value)
        yield counter
    running = GaugeMetricFamily("eagre_key_streams", "Generations of the key that run or wait", labels=["key"])
    for key, value in _by_name(accounts, lambda account: account.num_streams):
        running.add_metric([key], value)
    yield running


def _by_name(accounts: Sequence[KeyAccount], read: Callable[[KeyAccount], int]) -> Iterator[tuple[str, int]]:
    for account in accounts[:MAX_NAMES]:
        yield account.name, read(account)
    if len(accounts) > MAX_NAMES:
        yield OTHERS, sum(read(account) for account in accounts[MAX_NAMES:])
