"""Tables of medians: one row for each load and figure, one column for each contender, and ratios between them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from server.cli.bench.load.report import Report

LEGEND = (
    "medians of rounds (least..most), ratios of medians; others: share of all processors that other processes had;\n"
    "times in ms unless a name says otherwise; full tok/s: while every stream flowed; gap: between chunks of a stream"
)


OTHERS = "others, %"


@dataclass(frozen=True, slots=True)
class Turn:
    round: int
    load: str
    contender: str
    figures: dict[str, float]
    others: float | None = None  # share of the processors that other processes had meanwhile, 0 to 1
    report: Report | None = None

    @property
    def is_good(self) -> bool:
        return self.report is None or not (self.report.num_failed or self.report.num_off_length)

    @property
    def shown(self) -> dict[str, float]:
        return self.figures | ({} if self.others is None else {OTHERS: 100 * self.others})


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
        ratios = ["-" if ratio is None or self.figure == OTHERS else f"{ratio:.3f}" for ratio in self.ratios.values()]
        return [self.load, self.figure, *(spread(self.samples.get(name, ())) for name in contenders), *ratios]

    def to_dict(self) -> dict[str, Any]:
        medians = {name: median(values) for name, values in self.samples.items() if values}
        return {"load": self.load, "figure": self.figure, "medians": medians, "ratios": self.ratios}


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.1f}" if value >= 10 else f"{value:,.2f}"


def spread(values: Sequence[float]) -> str:
    if not values:
        return "-"
    ends = f" ({number(min(values))}..{number(max(values))})" if len(values) > 1 else ""
    return number(median(values)) + ends


def rows_of(turns: Iterable[Turn], contenders: Sequence[str], pairs: Sequence[tuple[str, str]] = ()) -> list[Row]:
    """The rows of all turns, the figures of a load one below the other."""
    rows: dict[tuple[str, str], Row] = {}
    for turn in turns:
        for figure, value in turn.shown.items():
            key = turn.load, figure
            row = rows.setdefault(key, Row(*key, {name: [] for name in contenders}, pairs))
            row.samples[turn.contender].append(value)
    return list(rows.values())


def print_table(rows: Sequence[Row], contenders: Sequence[str], legend: str = LEGEND) -> None:
    """Prints rows in columns that are as wide as their widest cells."""
    pairs = [f"{one}/{other}" for one, other in rows[0].pairs] if rows else []
    print_columns([["load", "figure", *contenders, *pairs], *(row.cells(contenders) for row in rows)])
    print(legend)


def print_columns(lines: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for cells in lines:
        print("  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)), flush=True)
