"""How fast the whole server is: tokens per second, time to first token and inter-token latency under load.

    python -m benchmarks.serve                                # starts `eagre serve`, measures, stops it
    python -m benchmarks.serve --transport ws --concurrency 16 64
    python -m benchmarks.serve --url http://127.0.0.1:8000    # measures a server that runs

The load comes from a process of its own, on the same machine: it takes its share of the processor.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import platform
import random
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from benchmarks.load import CHOICES, Workload, measure_apart
from benchmarks.trace import Report, Spread

ROOT = Path(__file__).parent.parent
EAGRE = "import sys; from server.cli import main; sys.exit(main())"  # the console script, installed or not
READY_TIMEOUT = 900.0  # seconds; the first start fetches the model and compiles every shape
STOP_TIMEOUT = 30.0
POLL_INTERVAL = 0.2

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


class ServerFailed(RuntimeError):
    """The server did not become ready."""


def get(url: str, timeout: float = 5.0) -> bytes:
    """The body of a 200 answer.

    Raises:
        OSError: there was no such answer; urllib's errors are of this kind.
    """
    with urllib.request.urlopen(url, timeout=timeout) as response:
        body: bytes = response.read()
        return body


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@contextlib.contextmanager
def running_server(command: Sequence[str], url: str) -> Iterator[None]:
    """Runs `command` until the block ends; enters the block when the server at `url` says that it is ready.

    Raises:
        ServerFailed: it exited first, or took longer than READY_TIMEOUT.
    """
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    try:
        deadline = time.monotonic() + READY_TIMEOUT
        while not is_ready(url):
            if process.poll() is not None:
                raise ServerFailed(f"{shlex.join(command)} exited with {process.returncode} before it was ready")
            if time.monotonic() > deadline:
                raise ServerFailed(f"{shlex.join(command)} was not ready after {READY_TIMEOUT:g} s")
            time.sleep(POLL_INTERVAL)
        yield
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def is_ready(url: str) -> bool:
    try:
        get(url + "/readiness")
    except OSError:
        return False
    return True


def served_model(url: str) -> str:
    """The name of the first model that the server lists."""
    name: str = orjson.loads(get(url + "/v1/models"))["data"][0]["id"]
    return name


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
    warm_up = Workload(
        url=url, model=served_model(url), transport=options.transport, num_requests=1, num_output_tokens=8
    )
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
        prog="python -m benchmarks.serve", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", help="of a running server; without it one is started on a free port")
    parser.add_argument("--model", help="for the started server: a name or a path to a GGUF file")
    parser.add_argument("--server-args", default="", help="further arguments of the started server, as one string")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16, 64], metavar="N", help="clients")
    parser.add_argument("--requests", type=int, help="in all, for each concurrency (default: 2 a client, at least 4)")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--prompt-kind", choices=CHOICES["prompt_kind"], default="ids")
    parser.add_argument("--transport", choices=CHOICES["transport"], default="sse")
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
            port = free_port()
            url = f"http://127.0.0.1:{port}"
            command = [sys.executable, "-c", EAGRE, "serve", "--host", "127.0.0.1", "--port", str(port)]
            command += ["--log-level", "warning"]  # keeps the table readable
            command += ["--model", options.model] if options.model else []
            stack.enter_context(running_server([*command, *shlex.split(options.server_args)], url))
        records = run_all(url, options)
    if options.json:
        result = {
            "command": shlex.join(["python", "-m", "benchmarks.serve", *arguments]),
            "time": datetime.now(UTC),
            "python": platform.python_version(),
            "machine": platform.machine(),
            "num_cores": os.cpu_count(),
            "loads": records,
        }
        options.json.write_bytes(orjson.dumps(result, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    return 1 if any(record["report"].num_failed for record in records) else 0


if __name__ == "__main__":
    # As SIGINT does: the server that was started is stopped too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(main(sys.argv[1:]))
    except (ServerFailed, urllib.error.URLError) as error:
        sys.exit(f"benchmarks.serve: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
