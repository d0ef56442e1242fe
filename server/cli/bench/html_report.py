"""The HTML report of a measurement, with its plots; the page itself is the jinja2 template `report.html`."""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from jinja2 import Environment, StrictUndefined

from server.cli.bench import chart
from server.cli.bench.chart import Axis, Bar, Series
from server.cli.bench.comparison import Ratio, Turn, ratio_head, ratio_rows
from server.cli.bench.load.load import Load
from server.cli.bench.load.report import Report, percentile
from server.cli.bench.load.trace import Trace
from server.cli.bench.load.workload import Workload
from server.cli.bench.plan import Plan, Server
from server.cli.bench.table import LEGEND, notes_on, number, percentiles

_MAX_DOTS = 1500  # of one series
_MAX_BARS = 200
_NUM_BINS = 120  # of a course over time, at most
_PERCENTS = (*range(100), 99.5, 99.9, 100)


class Group:
    def __init__(self, name: str, colour: int) -> None:
        self.name = name
        self.colour = colour
        self.turns: list[Turn] = []
        self.loads: list[Load] = []

    @property
    def good(self) -> list[Trace]:
        return [trace for load in self.loads for trace in load.traces if trace.error is None]


def html_report(
    plan: Plan,
    servers: Sequence[Server],
    turns: Sequence[Turn],
    loads: Sequence[Load],
    ratios: Sequence[Ratio],
    *,
    is_complete: bool,
) -> str:
    """The whole page; `loads` has one for each turn."""
    groups: dict[tuple[str, str], Group] = {}
    for turn, load in zip(turns, loads, strict=True):
        name = f"{turn.load} {turn.server}".strip()
        group = groups.setdefault((turn.load, turn.server), Group(name, len(groups)))
        group.turns.append(turn)
        group.loads.append(load)
    # Not the environment of chat templates: this template is our own, and escapes what it is given.
    environment = Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    template = environment.from_string(Path(__file__).with_name("report.html").read_text("utf-8"))
    return template.render(
        plan=plan,
        servers=servers,
        models=" and ".join(dict.fromkeys(server.model for server in servers)),
        workload=plan.loads[0].workload,
        prompts=_prompts(plan.loads[0].workload),
        date=datetime.now(UTC),
        is_complete=is_complete,
        figures=_figures(turns),
        legend=LEGEND,
        notes=[
            f"{turn.load} {turn.server}, round {turn.round + 1}: {note}"
            for turn, load in zip(turns, loads, strict=True)
            for note in notes_on(load, turn.report)
        ],
        ratios=(ratio_head(servers), ratio_rows(ratios)) if ratios else None,
        plots=_plots(list(groups.values()), plan, servers),
    )


def _prompts(workload: Workload) -> str:
    if workload.dataset:
        return f"prompts of a file with {len(workload.dataset):,} lines"
    shared = f", the first {workload.num_shared_tokens:,} the same in all" if workload.num_shared_tokens else ""
    return f"prompts of about {workload.num_prompt_tokens:,} tokens{shared}"


def _figures(turns: Sequence[Turn]) -> tuple[list[str], list[list[str]]]:
    """The head and the rows of the table, with servers and rounds if there are several."""
    head = (
        "load", "server", "round", "requests", "failed", "tokens/s", "requests/s", "prompt tokens",
        "TTFT p50", "p90", "p99", "ITL p50", "p90", "p99", "TPOT p50", "E2EL p50", "p99",
    )  # fmt: skip
    has_servers, has_rounds = any(turn.server for turn in turns), any(turn.round for turn in turns)
    shown = [index for index in range(len(head)) if (index != 1 or has_servers) and (index != 2 or has_rounds)]
    rows = [(turn.load, turn.server, str(turn.round + 1), *_cells(turn.report)) for turn in turns]
    return [head[index] for index in shown], [[row[index] for index in shown] for row in rows]


def _cells(report: Report) -> Iterator[str]:
    yield f"{report.num_requests:,}"
    yield f"{report.num_failed:,}"
    yield number(report.tokens_per_s)
    yield number(report.requests_per_s)
    yield "-" if report.num_prompt_tokens is None else f"{report.num_prompt_tokens:,}"
    yield from percentiles(report.ttft)
    yield from percentiles(report.itl)
    yield percentiles(report.tpot)[0]
    yield percentiles(report.e2el)[0]
    yield percentiles(report.e2el)[2]


def _plots(groups: Sequence[Group], plan: Plan, servers: Sequence[Server]) -> Iterator[str]:
    if len(plan.loads) > 1:
        yield from _over_loads(groups, plan, servers)
    yield _quantiles("Time to first token", groups, [[t.ttft for t in g.good if t.ttft is not None] for g in groups])
    yield _quantiles(
        "Gaps between chunks of one stream", groups, [[gap for t in g.good for gap in t.gaps] for g in groups]
    )
    yield _course("Output tokens per second over time", groups)
    yield _first_tokens(groups)
    for group in groups:
        yield _requests(group)


def _over_loads(groups: Sequence[Group], plan: Plan, servers: Sequence[Server]) -> Iterator[str]:
    has_rates = plan.loads[0].workload.rate is not None
    sizes = {load.name: (load.workload.rate if has_rates else load.workload.concurrency) or 0.0 for load in plan.loads}
    label = "requests per second that arrive" if has_rates else "clients"
    wanted: dict[str, Callable[[Report], float | None]] = {
        "Output tokens per second": lambda report: report.tokens_per_s,
        "Time to first token, median, ms": lambda report: None if report.ttft is None else report.ttft.p50,
        "Gap between chunks, p99, ms": lambda report: None if report.itl is None else report.itl.p99,
    }
    for title, read in wanted.items():
        series = []
        for colour, server in enumerate(servers):
            points: list[chart.Point] = []
            for group in groups:
                values = [read(turn.report) for turn in group.turns if turn.server == server.name]
                if known := [value for value in values if value is not None]:
                    points.append((float(sizes[group.turns[0].load]), float(median(known))))
            series.append(Series(server.name, sorted(points), colour))
        x = Axis.over(label, [size for one in series for size, _ in one.points])
        y = Axis.over(title, [value for one in series for _, value in one.points])
        yield chart.lines(f"{title}, by load", x, y, series, has_dots=True)


def _quantiles(title: str, groups: Sequence[Group], samples: Sequence[Sequence[float]]) -> str:
    series = []
    for group, sample in zip(groups, samples, strict=True):
        ordered = sorted(1000 * value for value in sample)
        if ordered:
            points = [(float(percent), percentile(ordered, percent)) for percent in _PERCENTS]
            series.append(Series(group.name, points, group.colour))
    y = Axis.over("ms", [value for one in series for _, value in one.points], is_logarithmic=True)
    return chart.lines(f"{title}, by percentile", Axis("percentile", 0, 100), y, series)


def _course(title: str, groups: Sequence[Group]) -> str:
    series, seconds = [], 0.0
    for group in groups:
        began = min((trace.sent for trace in group.loads[0].traces), default=0.0)
        arrivals = sorted(
            (arrival.time - began, arrival.num_tokens * scale)
            for trace, scale in ((trace, _scale(trace)) for trace in group.loads[0].traces)
            for arrival in trace.arrivals
        )
        if not arrivals:
            continue
        length = max(arrivals[-1][0], 0.001)
        width = next(
            (step for step in (0.25, 0.5, 1, 2, 5, 10, 30, 60) if length / step <= _NUM_BINS), length / _NUM_BINS
        )
        bins = [0.0] * (int(length / width) + 1)
        for at, num_tokens in arrivals:
            bins[int(at / width)] += num_tokens
        bins = bins[:-1] or bins  # the last one is not full
        series.append(
            Series(group.name, [((i + 0.5) * width, count / width) for i, count in enumerate(bins)], group.colour)
        )
        seconds = max(seconds, length)
    y = Axis.over("tokens/s", [value for one in series for _, value in one.points])
    return chart.lines(title, Axis("seconds", 0, seconds or 1.0), y, series)


def _scale(trace: Trace) -> float:
    """Output tokens by tokens counted in chunks: some servers count only at the end."""
    num_counted = sum(arrival.num_tokens for arrival in trace.arrivals)
    return trace.num_tokens / num_counted if num_counted else 1.0


def _first_tokens(groups: Sequence[Group]) -> str:
    series = []
    for group in groups:
        load = group.loads[0]
        began = min((trace.sent for trace in load.traces), default=0.0)
        points = [(trace.sent - began, 1000 * trace.ttft) for trace in load.traces if trace.ttft is not None]
        series.append(Series(group.name, points[:: -(-len(points) // _MAX_DOTS) or 1], group.colour))
    x = Axis.over("seconds, when the request was sent", [at for one in series for at, _ in one.points])
    y = Axis.over("ms", [value for one in series for _, value in one.points], is_logarithmic=True)
    return chart.dots("Time to first token, request by request", x, y, series)


def _requests(group: Group) -> str:
    traces = sorted(group.loads[0].traces, key=lambda trace: trace.sent)
    began = traces[0].sent
    rows = [
        Bar(
            trace.sent - began,
            (trace.arrivals[0].time if trace.arrivals else trace.ended) - began,
            trace.ended - began,
            trace.error is not None,
        )
        for trace in traces[:_MAX_BARS]
    ]
    title = f"{group.name}: requests" + (
        f", the first {_MAX_BARS} of {len(traces):,}" if len(traces) > _MAX_BARS else ""
    )
    return chart.bars(title, Axis.over("seconds", [row.end for row in rows]), rows)
