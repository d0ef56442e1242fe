"""Tables of medians: one row for each load and figure, one column for each contender, and ratios between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

LEGEND = (
    "times in ms unless a name says otherwise, medians of rounds (least..most), ratios of medians; full tok/s: while\n"
    "every stream flowed; gap: between chunks of one stream; others: share of all processors that other processes had"
)


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of all contenders under one load, each in the order of the rounds."""

    load: str
    figure: str
    samples: dict[str, list[float]]  # by contender
    pairs: Sequence[tuple[str, str]] = ()  # whose ratios are shown

    def median(self, contender: str) -> float | None:
        values = self.samples.get(contender)
        return median(values) if values else None

    def ratio(self, contender: str, reference: str) -> float | None:
        """The ratio of two medians; None where one is missing or the second is 0."""
        one, other = self.median(contender), self.median(reference)
        return None if one is None or not other else one / other

    @property
    def ratios(self) -> dict[str, float | None]:
        return {f"{one}/{other}": self.ratio(one, other) for one, other in self.pairs}

    def cells(self, contenders: Sequence[str]) -> list[str]:
        ratios = [
            "-" if ratio is None or self.figure.startswith("others") else f"{ratio:.3f}"
            for ratio in self.ratios.values()
        ]
        return [self.load, self.figure, *(spread(self.samples.get(name, ())) for name in contenders), *ratios]

    def to_dict(self) -> dict[str, Any]:
        medians = {name: median(values) for name, values in self.samples.items() if values}
        return {"load": self.load, "figure": self.figure, "medians": medians, "ratios": self.ratios}


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.1f}" if value >= 10 else f"{value:,.2f}"


def spread(values: Sequence[float]) -> str:
    """The median, and the least and the most if there are several."""
    if not values:
        return "-"
    ends = f" ({number(min(values))}..{number(max(values))})" if len(values) > 1 else ""
    return number(median(values)) + ends


def rows_of(
    samples: Iterable[tuple[str, str, Mapping[str, float]]],
    contenders: Sequence[str],
    pairs: Sequence[tuple[str, str]] = (),
) -> list[Row]:
    """Rows of (load, contender, figures), the figures of a load one below the other."""
    rows: dict[tuple[str, str], Row] = {}
    for load, contender, figures in samples:
        for figure, value in figures.items():
            row = rows.setdefault((load, figure), Row(load, figure, {name: [] for name in contenders}, pairs))
            row.samples[contender].append(value)
    return list(rows.values())


def print_table(rows: Sequence[Row], contenders: Sequence[str], legend: str = LEGEND) -> None:
    """Prints rows in columns that are as wide as their widest cells."""
    pairs = [f"{one}/{other}" for one, other in rows[0].pairs] if rows else []
    print_columns([["load", "figure", *contenders, *pairs], *(row.cells(contenders) for row in rows)])
    print(legend)


def print_columns(lines: Sequence[Sequence[str]]) -> None:
    """Prints lines of cells, right-aligned."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for cells in lines:
        print("  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)), flush=True)
