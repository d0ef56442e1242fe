"""The figures of a running load."""

import time
from collections import deque

from server.cli.bench.load.load import Load
from server.cli.bench.load.report import Spread
from server.cli.bench.load.trace import Trace

WINDOW_S = 3.0  # over which the rate of now is measured
_MAX_SAMPLES = 10_000  # the last ones of a distribution, so that sorting takes milliseconds under any load


class LiveFigures:
    """Figures that `update` computes from the load's traces, without any work in the requests themselves."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._num_seen = 0  # traces
        self._open: list[tuple[Trace, int]] = []  # with how many of its arrivals have been read
        self._ttfts: deque[float] = deque(maxlen=_MAX_SAMPLES)
        self._gaps: deque[float] = deque(maxlen=_MAX_SAMPLES)
        self._moments: deque[tuple[float, int]] = deque()  # time, tokens until then
        self._num_tokens = 0
        self.num_ended = 0
        self.num_failed = 0

    def update(self) -> None:
        traces = self._load.traces
        self._open += [(trace, 0) for trace in traces[self._num_seen :]]
        self._num_seen = len(traces)
        still_open = []
        for trace, num_read in self._open:
            has_ended, arrivals = bool(trace.ended), trace.arrivals
            for index in range(num_read, len(arrivals)):
                self._num_tokens += arrivals[index].num_tokens
                if index:
                    self._gaps.append(arrivals[index].time - arrivals[index - 1].time)
                else:
                    self._ttfts.append(arrivals[0].time - trace.sent)
            if has_ended:
                self._end(trace)
            else:
                still_open.append((trace, len(arrivals)))
        self._open = still_open
        now = time.perf_counter()
        self._moments.append((now, self._num_tokens))
        while len(self._moments) > 2 and now - self._moments[1][0] >= WINDOW_S:
            self._moments.popleft()

    def _end(self, trace: Trace) -> None:
        self.num_ended += 1
        self.num_failed += trace.error is not None
        # The server's own count is known now; until here each chunk without token ids counted as one token.
        self._num_tokens += trace.num_tokens - sum(arrival.num_tokens for arrival in trace.arrivals)

    @property
    def num_running(self) -> int:
        return len(self._open)

    @property
    def rate_now(self) -> float:
        """Tokens per second over the last WINDOW_S."""
        (first, tokens), (last, all_tokens) = self._moments[0], self._moments[-1]
        return max(0, all_tokens - tokens) / (last - first) if last > first else 0.0

    @property
    def rate(self) -> float:
        began = self._load.began
        seconds = time.perf_counter() - began if began is not None else 0.0
        return self._num_tokens / seconds if seconds > 0 else 0.0

    @property
    def ttft(self) -> Spread | None:
        return Spread.of(self._ttfts)

    @property
    def gap(self) -> Spread | None:
        return Spread.of(self._gaps)
