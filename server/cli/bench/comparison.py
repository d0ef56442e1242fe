"""Comparison of two servers over several rounds: the medians of each figure, and their ratio."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from server.cli.bench.load.report import Report
from server.cli.bench.plan import Server
from server.cli.bench.table import number


@dataclass(frozen=True, slots=True)
class Turn:
    """One load on one server, in one round."""

    round: int
    load: str
    server: str
    report: Report


@dataclass(frozen=True, slots=True)
class Ratio:
    """One figure of two servers under one load, round by round."""

    load: str
    figure: str
    first: tuple[float, ...]
    second: tuple[float, ...]

    @property
    def of_medians(self) -> float | None:
        """The first server's median divided by the second's; None if that is 0."""
        below = median(self.second)
        return median(self.first) / below if below else None

    @property
    def spread(self) -> tuple[float, float] | None:
        ratios = [one / other for one, other in zip(self.first, self.second, strict=True) if other]
        return (min(ratios), max(ratios)) if ratios else None


def figures_of(report: Report) -> dict[str, float]:
    """The figures that are compared, by name; times in milliseconds."""
    figures = {"tok/s": report.tokens_per_s, "requests/s": report.requests_per_s}
    if report.ttft is not None:
        figures |= {"TTFT p50": report.ttft.p50, "TTFT p99": report.ttft.p99}
    if report.itl is not None:
        figures |= {"ITL p50": report.itl.p50, "ITL p99": report.itl.p99}
    if report.tpot is not None:
        figures["TPOT p50"] = report.tpot.p50
    if report.e2el is not None:
        figures["E2EL p50"] = report.e2el.p50
    return figures


def compare(turns: Sequence[Turn], servers: tuple[str, str]) -> list[Ratio]:
    """The ratios of all loads, from the rounds that both servers have completed with that figure."""
    pairs: dict[tuple[str, int], dict[str, dict[str, float]]] = {}
    for turn in turns:
        if not turn.report.num_cut:
            pairs.setdefault((turn.load, turn.round), {})[turn.server] = figures_of(turn.report)
    samples: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for (load, _), by_server in pairs.items():
        if len(by_server) == 2:
            one, other = (by_server[name] for name in servers)
            for figure in one.keys() & other.keys():
                samples.setdefault((load, figure), []).append((one[figure], other[figure]))
    loads = list(dict.fromkeys(turn.load for turn in turns))
    return [
        Ratio(load, figure, *zip(*samples[load, figure], strict=True))
        for load in loads
        for figure in _ORDER
        if (load, figure) in samples
    ]


_ORDER = ("tok/s", "requests/s", "TTFT p50", "TTFT p99", "ITL p50", "ITL p99", "TPOT p50", "E2EL p50")


def ratio_text(ratio: Ratio) -> str:
    """The ratio of the medians and its spread, as `1.25 (1.20..1.31)`."""
    if ratio.of_medians is None or ratio.spread is None:
        return "-"
    ends = "" if len(ratio.first) == 1 else f" ({ratio.spread[0]:.2f}..{ratio.spread[1]:.2f})"
    return f"{ratio.of_medians:.2f}{ends}"


def ratio_head(servers: Sequence[Server]) -> tuple[str, ...]:
    first, second = servers[0].name, servers[1].name
    return ("load", "figure", first, second, f"{first} / {second}")


def ratio_rows(ratios: Sequence[Ratio]) -> list[tuple[str, ...]]:
    """For each ratio the medians of both servers and `ratio_text`."""
    return [
        (ratio.load, ratio.figure, number(median(ratio.first)), number(median(ratio.second)), ratio_text(ratio))
        for ratio in ratios
    ]
