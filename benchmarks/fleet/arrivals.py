"""Arrivals of requests at a fleet: their times, prefixes and lengths."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson

SHARED_TOKENS = 512  # of synthetic requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request; the keys of a recorded one have the same names."""

    at: float  # seconds from the first one
    prefix: str  # requests with the same one begin with the same `num_shared` tokens
    num_shared: int
    num_own: int  # tokens of the prompt behind them
    num_output: int

    def __post_init__(self) -> None:
        if not (self.at >= 0 and self.num_shared >= 0 and self.num_own >= 1 and self.num_output >= 1):
            raise ValueError(f"{self} has a negative time or number, or no own or output token")

    @property
    def num_prompt(self) -> int:
        return self.num_shared + self.num_own


@dataclass(frozen=True, slots=True, kw_only=True)
class Synthetic:
    """Poisson arrivals whose beginnings are drawn by Zipf's law, and whose lengths are geometric."""

    rate: float  # requests a second
    num_requests: int
    num_prefixes: int = 200
    num_shared: int = SHARED_TOKENS
    mean_own: int = 64
    mean_output: int = 64
    seed: int = 0

    def arrivals(self) -> Iterator[Arrival]:
        draw = random.Random(self.seed)
        ranks = range(1, self.num_prefixes + 1)
        prefixes = draw.choices(ranks, [1 / rank for rank in ranks], k=self.num_requests)
        now = 0.0
        for prefix in prefixes:
            now += draw.expovariate(self.rate)
            yield Arrival(
                at=now,
                prefix=str(prefix),
                num_shared=self.num_shared,
                num_own=1 + int(draw.expovariate(1 / self.mean_own)),
                num_output=1 + int(draw.expovariate(1 / self.mean_output)),
            )


def read_arrivals(path: Path) -> list[Arrival]:
    """Recorded arrivals, one JSON object on each line, in order of their times; raises ValueError for a bad line."""
    arrivals = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            if line.strip():
                arrivals.append(Arrival(**orjson.loads(line)))
        except (TypeError, ValueError) as error:
            raise ValueError(f"line {number} is no arrival: {error!r}") from error
    return sorted(arrivals, key=lambda arrival: arrival.at)
