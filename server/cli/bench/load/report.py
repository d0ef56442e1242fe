"""The figures of a load, computed from its traces; `trace.py` defines the times."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from server.cli.bench.load.trace import Trace

MAX_ERRORS = 5  # how many distinct errors a report quotes


@dataclass(frozen=True, slots=True)
class Spread:
    """The distribution of a sample, in milliseconds."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Spread | None:
        ordered = sorted(1000 * value for value in seconds)
        if not ordered:
            return None
        p50, p90, p99 = (percentile(ordered, percent) for percent in (50, 90, 99))
        return cls(sum(ordered) / len(ordered), p50, p90, p99, ordered[-1])


def percentile(ordered: Sequence[float], percent: float) -> float:
    """A percentile of a sorted, non-empty sample, with linear interpolation between the two nearest ranks."""
    rank = (len(ordered) - 1) * percent / 100
    below = int(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)


def full_rate(traces: Sequence[Trace], concurrency: int) -> float | None:
    """Tokens per second while `concurrency` streams were between their first and last chunk; None if there were fewer.

    This excludes prefill and the start and the end of the load, and measures the decode steps alone.
    """
    flowing = [trace for trace in traces if len(trace.arrivals) > 1]
    # At equal times a stream ends before the next one starts.
    edges = sorted(
        [(trace.arrivals[0].time, 1) for trace in flowing] + [(trace.arrivals[-1].time, -1) for trace in flowing]
    )
    starts, ends = [], []
    num_active = 0
    for moment, change in edges:
        if num_active == concurrency:
            ends.append(moment)
        num_active += change
        if num_active == concurrency:
            starts.append(moment)
    duration = sum(ends) - sum(starts)
    if duration <= 0:
        return None
    num_tokens = 0
    for arrival in itertools.chain.from_iterable(trace.arrivals for trace in flowing):
        window = bisect_left(starts, arrival.time) - 1  # the last window that starts before the arrival
        if window >= 0 and arrival.time <= ends[window]:
            num_tokens += arrival.num_tokens
    return num_tokens / duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The figures of one load. Failed requests are only counted."""

    num_requests: int
    num_failed: int
    num_cut: int  # requests whose answers had not ended when the load was stopped
    errors: dict[str, int]  # how often each error came, the most frequent first
    num_off_length: int  # requests that ended with another number of tokens than they asked for
    num_prompt_tokens: int | None  # of all prompts; None where the server does not report them
    num_output_tokens: int
    num_cached_tokens: int  # of all prompts
    seconds: float  # from the first request sent to the last one ended
    tokens_per_s: float  # output tokens over `seconds`, prefill included
    requests_per_s: float  # answers that ended, over `seconds`
    full_tokens_per_s: float | None  # see full_rate
    tokens_per_chunk: float | None
    ttft: Spread | None
    itl: Spread | None  # pooled over all requests
    tpot: Spread | None
    e2el: Spread | None
    delay: Spread | None  # of sending, against the time that the rate gave; None without a rate

    @classmethod
    def of(cls, traces: Sequence[Trace], *, concurrency: int | None, num_output_tokens: int | None) -> Report:
        """Summarises traces; `concurrency` and `num_output_tokens` of a request are None where they were not fixed."""
        good = [trace for trace in traces if trace.error is None]
        ended = [trace for trace in good if not trace.is_cut]
        errors = Counter(trace.error for trace in traces if trace.error is not None)
        num_tokens = sum(trace.num_tokens for trace in good)
        num_chunks = sum(len(trace.arrivals) for trace in good)
        prompts = [trace.num_prompt_tokens for trace in ended if trace.num_prompt_tokens is not None]
        seconds = max((trace.ended for trace in traces), default=0.0) - min((t.sent for t in traces), default=0.0)
        off_length = [trace for trace in ended if num_output_tokens not in (None, trace.num_tokens)]
        return cls(
            num_requests=len(traces),
            num_failed=len(traces) - len(good),
            num_cut=len(good) - len(ended),
            errors=dict(errors.most_common(MAX_ERRORS)),
            num_off_length=len(off_length),
            num_prompt_tokens=sum(prompts) if prompts else None,
            num_output_tokens=num_tokens,
            num_cached_tokens=sum(trace.num_cached_tokens for trace in good),
            seconds=seconds,
            tokens_per_s=num_tokens / seconds if seconds > 0 else 0.0,
            requests_per_s=len(ended) / seconds if seconds > 0 else 0.0,
            full_tokens_per_s=None if concurrency is None else full_rate(good, concurrency),
            tokens_per_chunk=num_tokens / num_chunks if num_chunks else None,
            ttft=Spread.of(trace.ttft for trace in good if trace.ttft is not None),
            itl=Spread.of(gap for trace in good for gap in trace.gaps),
            tpot=Spread.of(trace.tpot for trace in good if trace.tpot is not None),
            e2el=Spread.of(trace.e2el for trace in good if trace.e2el is not None),
            delay=Spread.of(trace.sent - trace.due for trace in traces if trace.due is not None),
        )
