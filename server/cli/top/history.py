"""Rates and step times from the last events of an engine."""

from collections import deque
from statistics import median
from typing import Any, NamedTuple

WINDOW_S = 2.0  # over which rates are measured
MAX_STEPS = 128
MAX_RATES = 60

# Places in a step of the stream: number, rows, tokens, six times of the host, and the two of the device.
_ROWS, _DEVICE_BEGAN, _DEVICE_ENDED = 1, 9, 10


class _Moment(NamedTuple):
    at: float  # seconds, on the engine's clock
    num_generation_tokens: int
    num_prompt_tokens: int


class History:
    """Rates over the last WINDOW_S and the last steps, from the events of `GET /engine/events`."""

    def __init__(self) -> None:
        self._moments: deque[_Moment] = deque()
        self._steps: deque[tuple[float, int]] = deque(maxlen=MAX_STEPS)  # milliseconds, rows
        self.rates: deque[float] = deque(maxlen=MAX_RATES)  # generated tokens per second, one for each event

    def add(self, event: dict[str, Any]) -> None:
        now = event["now_ms"] / 1000
        if self._moments and now < self._moments[-1].at:
            self._moments.clear()  # another engine, because the server was restarted
        self._moments.append(_Moment(now, event["num_generation_tokens"], event["num_prompt_tokens"]))
        while len(self._moments) > 2 and now - self._moments[1].at >= WINDOW_S:
            self._moments.popleft()
        self._steps.extend((step[_DEVICE_ENDED] - step[_DEVICE_BEGAN], step[_ROWS]) for step in event["steps"])
        self.rates.append(self.generation_rate)

    @property
    def generation_rate(self) -> float:
        return self._rate(1)

    @property
    def prompt_rate(self) -> float:
        """Prompt tokens of admitted requests per second."""
        return self._rate(2)

    @property
    def step_ms(self) -> float | None:
        """The median duration of the last steps on the device."""
        return median(duration for duration, _ in self._steps) if self._steps else None

    @property
    def mean_rows(self) -> float:
        return sum(rows for _, rows in self._steps) / len(self._steps) if self._steps else 0.0

    def _rate(self, field: int) -> float:
        if len(self._moments) < 2:
            return 0.0
        first, last = self._moments[0], self._moments[-1]
        seconds = last.at - first.at
        return max(0.0, last[field] - first[field]) / seconds if seconds else 0.0
