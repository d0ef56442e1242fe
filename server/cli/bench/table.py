"""The table of `eagre bench` in the terminal: one line for each load, printed when the load has ended."""

import sys
from collections.abc import Callable, Iterable, Sequence

from rich.console import Console
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from server.cli.bench.live_figures import LiveFigures
from server.cli.bench.load.load import Load
from server.cli.bench.load.report import Report, Spread
from server.startup.plain_text import without_controls

_WIDTHS = (14, 9, 11, 8, 8, 8, 8, 8, 8, 8, 8, 6)
_HEADINGS = (
    "load", "requests", "tok/s now", "tok/s", "TTFT p50", "p90", "p99", "ITL p50", "p90", "p99", "TPOT", "errors",
)  # fmt: skip
LEGEND = (
    "times in ms. TTFT: until the first token; ITL: between chunks of one stream; TPOT: mean time per output token; "
    "tok/s: output tokens, prefill included"
)


def headings() -> str:
    return _line(_HEADINGS)


def line_of(name: str, report: Report) -> str:
    return _line((
        name, f"{report.num_requests - report.num_failed:,}", "", number(report.tokens_per_s),
        *percentiles(report.ttft), *percentiles(report.itl),
        number(None if report.tpot is None else report.tpot.p50), f"{report.num_failed:,}",
    ))  # fmt: skip


def live_line(name: str, load: Load, figures: LiveFigures) -> str:
    total = load.workload.num_requests
    requests = f"{figures.num_ended:,}/{total:,}" if total else f"{figures.num_ended:,}"
    return _line((
        name, requests, number(figures.rate_now), number(figures.rate), *percentiles(figures.ttft),
        *percentiles(figures.gap), "", f"{figures.num_failed:,}",
    ))  # fmt: skip


def notes_on(load: Load, report: Report) -> list[str]:
    """Warnings about the figures, one line each: failures, cut answers, requests that were late or not sent."""
    notes = [f"failed {count:,} times: {error}" for error, count in report.errors.items()]
    if report.num_failed > sum(report.errors.values()):
        notes.append(f"failed in other ways {report.num_failed - sum(report.errors.values()):,} times")
    if report.num_off_length:
        notes.append(
            f"{report.num_off_length:,} of {report.num_requests:,} answers did not have "
            f"{load.workload.num_output_tokens:,} tokens: the server may not know ignore_eos, or its context may be "
            "too short"
        )
    if report.num_cut:
        notes.append(f"{report.num_cut:,} answers were cut off when the load was stopped; their tokens count")
    if load.num_unsent:
        notes.append(
            f"{load.num_unsent:,} requests were due and not sent: all {load.workload.concurrency} clients were busy"
        )
    if report.delay is not None and report.delay.p99 > _MAX_DELAY_MS:
        notes.append(
            f"requests were sent up to {report.delay.p99:,.0f} ms late (p99): the rate was not reached, because all "
            "clients or the processor were busy"
        )
    return [without_controls(note).replace("\n", " ") for note in notes]


_MAX_DELAY_MS = 20.0  # beyond which sending so late is worth a note


def number(value: float | None) -> str:
    """At least three digits; a dash for None."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.1f}" if value >= 10 else f"{value:,.2f}"


def percentiles(times: Spread | None) -> Sequence[str]:
    return ("-",) * 3 if times is None else (number(times.p50), number(times.p90), number(times.p99))


def _line(cells: Sequence[str]) -> str:
    return " ".join(f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=True))


def live(draw: Callable[[], str]) -> Live:
    """Draws one line four times a second and takes it away at the end; without a terminal it draws nothing."""
    return Live(
        console=_console(), get_renderable=lambda: Text(draw(), no_wrap=True, overflow="crop"), refresh_per_second=4,
        transient=True, redirect_stdout=False, redirect_stderr=False,
    )  # fmt: skip


def print_text(text: str) -> None:
    """Prints text; a terminal breaks no word of it."""
    _console().print(Text(text))


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints a table whose rows are all known."""
    table = Table(*(Column(name, justify="right", no_wrap=True) for name in head), box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    _console().print(table)


def _console() -> Console:
    """Standard output; lines have no limit where it is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else 10_000)
