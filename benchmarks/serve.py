"""How fast the whole server is: tokens per second, time to first token and inter-token latency under load.

    python -m benchmarks.serve                                # starts `eagre serve`, measures, stops it
    python -m benchmarks.serve --route websocket --concurrency 16 64
    python -m benchmarks.serve --url http://127.0.0.1:8000    # measures a server that runs

The load comes from a process of its own, on the same machine: it takes its share of the processor.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import random
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from benchmarks.serving.command import run, write_figures
from benchmarks.serving.load import measure_apart
from benchmarks.serving.server_process import served_model, started_server
from server.cli.bench.load.report import Report, Spread
from server.cli.bench.load.workload import PromptKind, Route, Workload

PROGRAM = "benchmarks.serve"
COLUMNS = (
    "clients",
    "requests",
    "tok/s",
    "full tok/s",
    "TTFT p50",
    "p99",
    "ITL p50",
    "p99",
    "max",
    "TPOT",
    "tok/chunk",
)
LEGEND = (
    "times in ms; tok/s with prefill, full tok/s while every client was receiving; "
    "ITL between chunks, TPOT the mean per output token"
)


def row(concurrency: int, report: Report) -> list[str]:
    """One line of the table, by COLUMNS."""

    def number(value: float | None, digits: int = 1) -> str:
        return "-" if value is None else f"{value:,.{digits}f}"

    def times(spread: Spread | None, *names: str) -> list[str]:
        return [number(None if spread is None else dataclasses.asdict(spread)[name]) for name in names]

    return [
        str(concurrency),
        str(report.num_requests),
        number(report.tokens_per_s),
        number(report.full_tokens_per_s),
        *times(report.ttft, "p50", "p99"),
        *times(report.itl, "p50", "p99", "max"),
        *times(report.tpot, "mean"),
        number(report.tokens_per_chunk, 2),
    ]


def print_row(cells: Sequence[str]) -> None:
    print("  ".join(f"{cell:>{max(8, len(name))}}" for cell, name in zip(cells, COLUMNS, strict=True)), flush=True)


def run_all(url: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measures every concurrency in turn, printing the table as it grows; returns the records for --json."""
    warm_up = Workload(url=url, model=served_model(url), route=options.route, num_requests=1, num_output_tokens=8)
    # Prompts unlike those of earlier runs: a running server may have them in its prefix cache.
    seed = options.seed if options.seed is not None else random.SystemRandom().getrandbits(32)
    measure_apart(dataclasses.replace(warm_up, seed=seed))
    print_row(COLUMNS)
    records = []
    for concurrency in options.concurrency:
        workload = dataclasses.replace(
            warm_up,
            concurrency=concurrency,
            num_requests=options.requests or max(4, 2 * concurrency),
            num_prompt_tokens=options.prompt_tokens,
            num_output_tokens=options.output_tokens,
            num_connections=options.connections,
            prompt_kind=options.prompt_kind,
            seed=seed + 1 + concurrency,
        )
        report = measure_apart(workload)
        print_row(row(concurrency, report))
        for error in report.errors:
            print(f"  failed ({report.num_failed} of {report.num_requests}): {error}", flush=True)
        if report.num_off_length:
            print(f"  {report.num_off_length} of {report.num_requests} ended with another length", flush=True)
        records.append({"workload": workload, "report": report})
    print(LEGEND)
    return records


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m {PROGRAM}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", help="of a running server; without it one is started on a free port")
    parser.add_argument("--model", help="for the started server: a name or a path to a GGUF file")
    parser.add_argument("--server-args", default="", help="further arguments of the started server, as one string")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16, 64], metavar="N", help="clients")
    parser.add_argument("--requests", type=int, help="in all, for each concurrency (default: 2 a client, at least 4)")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--prompt-kind", choices=get_args(PromptKind), default="ids")
    parser.add_argument("--route", choices=get_args(Route), default="completions")
    parser.add_argument("--connections", type=int, default=1, help="WebSockets that the clients share")
    parser.add_argument("--seed", type=int, help="of the prompts (default: another one each time)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    options = parser.parse_args(arguments)
    if options.url and (options.model or options.server_args):
        parser.error("--model and --server-args are for a server that is started here, not for --url")
    return options


def main(arguments: Sequence[str]) -> int:
    options = parse_arguments(arguments)
    with contextlib.ExitStack() as stack:
        if options.url:
            url = options.url.rstrip("/")
        else:
            model = ["--model", options.model] if options.model else []
            url = stack.enter_context(started_server([*model, *shlex.split(options.server_args)]))
        records = run_all(url, options)
    if options.json:
        write_figures(options.json, PROGRAM, arguments, loads=records)
    return 1 if any(record["report"].num_failed for record in records) else 0


if __name__ == "__main__":
    run(PROGRAM, main)
