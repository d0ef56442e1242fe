"""The figures of a load, as its clients see them.

ttft   time to first token, from just before the request is sent
itl    inter-token latency: the gaps between consecutive chunks with tokens, pooled over all requests.
       A chunk may have several tokens; `tokens_per_chunk` is their average number
tpot   time per output token: the time from the first chunk to the last, divided by the number of tokens
       after the first chunk
"""

from __future__ import annotations

import itertools
import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

MAX_ERRORS = 3  # how many distinct errors a report quotes


class Arrival(NamedTuple):
    time: float  # seconds of time.perf_counter
    num_tokens: int


@dataclass(slots=True)
class Trace:
    """One request, as its client saw it."""

    sent: float = field(default_factory=time.perf_counter)
    arrivals: list[Arrival] = field(default_factory=list)  # of chunks with tokens
    ended: float = 0.0
    num_output_tokens: int | None = None  # as the server reports it
    num_cached_tokens: int = 0  # prompt tokens from the prefix cache, as the server reports it
    finish_reason: str | None = None
    error: str | None = None

    @property
    def num_tokens(self) -> int:
        if self.num_output_tokens is not None:
            return self.num_output_tokens
        return sum(arrival.num_tokens for arrival in self.arrivals)

    @property
    def ttft(self) -> float | None:
        """Seconds; None if no token came."""
        return self.arrivals[0].time - self.sent if self.arrivals else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between consecutive chunks."""
        return [later.time - earlier.time for earlier, later in itertools.pairwise(self.arrivals)]

    @property
    def tpot(self) -> float | None:
        """Seconds; None if all tokens came in one chunk."""
        after_first = sum(arrival.num_tokens for arrival in self.arrivals[1:])
        return (self.arrivals[-1].time - self.arrivals[0].time) / after_first if after_first else None


@dataclass(frozen=True, slots=True)
class Spread:
    """The distribution of a sample, in milliseconds."""

    mean: float
    p50: float
    p99: float
    max: float

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Spread | None:
        """None for an empty sample."""
        ordered = sorted(1000 * value for value in seconds)
        if not ordered:
            return None
        return cls(sum(ordered) / len(ordered), percentile(ordered, 50), percentile(ordered, 99), ordered[-1])


def percentile(ordered: Sequence[float], percent: float) -> float:
    """A percentile of a sorted, non-empty sample, with linear interpolation between the two nearest ranks."""
    rank = (len(ordered) - 1) * percent / 100
    below = int(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)


def full_rate(traces: Sequence[Trace], concurrency: int) -> float | None:
    """Tokens per second in the time in which `concurrency` streams were between their first and last chunk.

    So it excludes prefill and the start and the end of the load, and measures the decode steps alone. None if
    at no time so many streams ran.
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
    """The figures of one load. Failed requests are counted, but are in no other figure."""

    num_requests: int
    num_failed: int
    errors: tuple[str, ...]  # the first distinct errors
    num_off_length: int  # requests that ended with another number of tokens than they asked for
    num_output_tokens: int
    num_cached_tokens: int  # of all prompts
    seconds: float  # from the first request sent to the last one ended
    tokens_per_s: float  # output tokens over `seconds`, prefill included
    full_tokens_per_s: float | None  # see full_rate
    tokens_per_chunk: float | None
    ttft: Spread | None
    itl: Spread | None
    tpot: Spread | None

    @classmethod
    def of(cls, traces: Sequence[Trace], *, concurrency: int, num_output_tokens: int) -> Report:
        """Summarises traces.

        Args:
            num_output_tokens: how many tokens each request asked for.
        """
        good = [trace for trace in traces if trace.error is None]
        num_tokens = sum(trace.num_tokens for trace in good)
        num_chunks = sum(len(trace.arrivals) for trace in good)
        seconds = max((trace.ended for trace in traces), default=0.0) - min((t.sent for t in traces), default=0.0)
        return cls(
            num_requests=len(traces),
            num_failed=len(traces) - len(good),
            errors=tuple(dict.fromkeys(trace.error for trace in traces if trace.error is not None))[:MAX_ERRORS],
            num_off_length=sum(trace.num_tokens != num_output_tokens for trace in good),
            num_output_tokens=num_tokens,
            num_cached_tokens=sum(trace.num_cached_tokens for trace in good),
            seconds=seconds,
            tokens_per_s=num_tokens / seconds if seconds else 0.0,
            full_tokens_per_s=full_rate(good, concurrency),
            tokens_per_chunk=num_tokens / num_chunks if num_chunks else None,
            ttft=Spread.of(trace.ttft for trace in good if trace.ttft is not None),
            itl=Spread.of(gap for trace in good for gap in trace.gaps),
            tpot=Spread.of(trace.tpot for trace in good if trace.tpot is not None),
        )
