"""The times and token counts of one request, measured by the client.

ttft   time to first token, from just before the request is sent
itl    inter-token latency: the gaps between consecutive chunks with tokens. A chunk may have several tokens
tpot   time per output token: the time from the first chunk to the last, divided by the number of tokens
       after the first chunk
e2el   end-to-end latency: from just before the request is sent until its answer has ended
"""

import itertools
import time
from dataclasses import dataclass, field
from typing import NamedTuple


class Arrival(NamedTuple):
    time: float  # seconds of time.perf_counter
    num_tokens: int


@dataclass(slots=True, eq=False)
class Trace:
    """The record of one request. Times are seconds of time.perf_counter."""

    sent: float = field(default_factory=time.perf_counter)
    arrivals: list[Arrival] = field(default_factory=list)  # of chunks with tokens
    ended: float = 0.0  # 0 while the answer comes
    num_output_tokens: int | None = None  # as the server reports it
    num_prompt_tokens: int | None = None  # as the server reports it
    num_cached_tokens: int = 0  # prompt tokens from the prefix cache, as the server reports it
    finish_reason: str | None = None
    error: str | None = None
    due: float | None = None  # when it was to be sent, where a rate says so
    is_cut: bool = False  # the load was stopped before the answer's end

    @property
    def num_tokens(self) -> int:
        if self.num_output_tokens is not None:
            return self.num_output_tokens
        return sum(arrival.num_tokens for arrival in self.arrivals)

    @property
    def ttft(self) -> float | None:
        """Time to first token in seconds; None without a token."""
        return self.arrivals[0].time - self.sent if self.arrivals else None

    @property
    def gaps(self) -> list[float]:
        return [later.time - earlier.time for earlier, later in itertools.pairwise(self.arrivals)]

    @property
    def tpot(self) -> float | None:
        """Time per output token in seconds; None if all tokens came in one chunk.

        Where a server reports the number of tokens only at the end, every chunk counts with the same number.
        """
        if len(self.arrivals) < 2:
            return None
        num_counted = sum(arrival.num_tokens for arrival in self.arrivals)
        after_first = (num_counted - self.arrivals[0].num_tokens) * self.num_tokens / num_counted
        return (self.arrivals[-1].time - self.arrivals[0].time) / after_first if after_first > 0 else None

    @property
    def e2el(self) -> float | None:
        """End-to-end latency in seconds; None for an answer that was cut."""
        return None if self.is_cut else self.ended - self.sent
