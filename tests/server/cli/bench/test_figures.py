"""The live line, ratios of two servers, and the charts."""

from __future__ import annotations

import pytest

from server.cli.bench import chart, table
from server.cli.bench.chart import Axis, Bar, Series
from server.cli.bench.comparison import Turn, compare, ratio_text
from server.cli.bench.html_report import html_report
from server.cli.bench.live_figures import LiveFigures
from server.cli.bench.load.load import Load
from server.cli.bench.load.report import Spread
from server.cli.bench.load.trace import Arrival, Trace
from server.cli.bench.load.workload import Workload
from server.cli.bench.plan import NamedLoad, Plan, Server

WORKLOAD = Workload(url="", model="", num_requests=2, num_output_tokens=4)


def load_of(*traces: Trace) -> Load:
    load = Load(WORKLOAD)
    load.traces = list(traces)
    load.began = traces[0].sent if traces else 0.0
    return load


def answer(sent: float, first: float, gap: float, **rest: object) -> Trace:
    arrivals = [Arrival(first + index * gap, 1) for index in range(4)]
    made = Trace(sent=sent, arrivals=arrivals, ended=arrivals[-1].time)
    for name, value in rest.items():
        setattr(made, name, value)
    return made


def test_live_figures_take_each_arrival_once() -> None:
    trace = Trace(sent=0.0, arrivals=[Arrival(0.5, 1)])
    load = load_of(trace)
    figures = LiveFigures(load)
    figures.update()
    figures.update()
    assert (figures.num_running, figures.num_ended) == (1, 0)
    assert figures.ttft == Spread.of([0.5])
    assert figures.gap is None
    trace.arrivals.append(Arrival(0.75, 1))
    trace.ended, trace.num_output_tokens, trace.error = 1.0, 8, "broken"
    figures.update()
    figures.update()
    assert (figures.num_running, figures.num_ended, figures.num_failed) == (0, 1, 1)
    assert figures.gap == Spread.of([0.25])
    line = table.live_line("1 client", load, figures).split()
    assert line[:3] == ["1", "client", "1/2"]
    assert line[-1] == "1"


def turns_of(*rates: tuple[str, int, float]) -> list[Turn]:
    """Each answer of four tokens takes 4 / rate seconds."""
    return [
        Turn(number, "1 client", server, load_of(answer(0.0, 1 / rate, 1 / rate)).report())
        for server, number, rate in rates
    ]


def test_the_ratio_is_that_of_medians_and_its_spread_that_of_rounds() -> None:
    turns = turns_of(("A", 0, 8), ("B", 0, 4), ("B", 1, 4), ("A", 1, 16), ("A", 2, 8), ("B", 2, 8), ("A", 3, 99))
    ratios = {ratio.figure: ratio for ratio in compare(turns, ("A", "B"))}
    assert ratio_text(ratios["tok/s"]) == "2.00 (1.00..4.00)"
    assert ratio_text(ratios["TTFT p50"]) == "0.50 (0.25..1.00)"
    assert list(ratios)[:2] == ["tok/s", "requests/s"]


def test_a_round_that_was_stopped_does_not_count() -> None:
    turns = turns_of(("A", 0, 8), ("B", 0, 4))
    turns.append(Turn(1, "1 client", "A", load_of(answer(0.0, 1.0, 1.0, is_cut=True)).report()))
    turns += turns_of(("B", 1, 4))
    assert {len(ratio.first) for ratio in compare(turns, ("A", "B"))} == {1}


@pytest.mark.parametrize("is_logarithmic", [False, True])
@pytest.mark.parametrize("values", [[], [0.0], [5.0], [1e-9, 2e9], [3.0, 3.0], [float("inf"), 2.0]])
def test_an_axis_has_few_ticks_within_its_ends(values: list[float], is_logarithmic: bool) -> None:
    axis = Axis.over("ms", values, is_logarithmic=is_logarithmic)
    ticks = list(axis.ticks())
    assert all(axis.low <= tick <= axis.high * 1.000001 for tick in ticks)
    assert 0 <= len(ticks) <= 20
    assert all(0 <= axis.place(value) <= 1 for value in (*ticks, -1.0, 0.0, axis.high * 2))
    assert axis.place(axis.low) == 0
    assert axis.place(axis.high) == 1


def test_a_chart_has_its_points_where_they_belong() -> None:
    drawn = chart.lines("t", Axis("x", 0, 10), Axis("y", 0, 4), [Series("a<b>", [(0, 0), (10, 4)], 9)])
    assert 'points="64.0,256.0 624.0,12.0"' in drawn
    assert "c1 d1" in drawn
    assert "a&lt;b&gt;" in drawn
    assert chart.bars("t", Axis("x", 0, 1), [Bar(0, 0.5, 1), Bar(0, 0.1, 0.2, True)]).count('class="failed"') == 2


def test_the_page_shows_names_as_text_and_lives_with_failures_alone() -> None:
    server = Server("", "http://x", "<script>alert(1)</script>")
    failed = Trace(sent=1.0, ended=1.0, error="<img src=x>\x1b[2J")
    load = load_of(failed)
    turn = Turn(0, "1 client", "", load.report())
    plan = Plan((NamedLoad("1 client", WORKLOAD),), 1, None, 0)
    page = html_report(plan, [server], [turn], [load], [], is_complete=True)
    assert "<script" not in page
    assert "<img" not in page
    assert "\x1b" not in page
    assert "&lt;img src=x&gt;" in page
    assert html_report(plan, [server], [], [], [], is_complete=False).endswith("</html>\n")
