"""The skeleton of a benchmark command: its parser, its exit status, and the JSON file of its figures."""

import argparse
import os
import platform
import shlex
import signal
import sys
import urllib.error
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import orjson

from benchmarks.serving.server_process import ServerFailed
from engine.backends.native import sources

KERNELS = Path(sources.__file__).parent
_OF_TESTS = ("libeagre_plain.so", "libeagre_amx_emulated.so")  # no server chooses them by itself


def new_parser(program: str, description: str | None) -> argparse.ArgumentParser:
    """A parser for `python -m PROGRAM` that prints its description as it is written."""
    return argparse.ArgumentParser(
        prog=f"python -m {program}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def at_least_one(text: str) -> int:
    """The type of an argument that counts something."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {value}")
    return value


def run(program: str, main: Callable[[Sequence[str]], int]) -> NoReturn:
    """Runs `main` with the arguments of the command line and exits with its status.

    Refuses native kernels that were compiled from other sources, instead of which a server would compute with XLA.
    """
    # As with SIGINT, the servers that were started are stopped first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = Path(os.environ.get("EAGRE_NATIVE_FOLDER") or KERNELS)
    if os.environ.get("EAGRE_NATIVE_VARIANT") != "none" and (stale := stale_kernels(folder)):
        sys.exit(
            f"{program}: {', '.join(stale)} in {folder} are older than the sources of {KERNELS}: run `make native`"
        )
    try:
        sys.exit(main(sys.argv[1:]))
    except (ServerFailed, urllib.error.URLError) as error:
        sys.exit(f"{program}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


def stale_kernels(folder: Path) -> list[str]:
    """The names of the libraries in a folder that were compiled from other sources than these."""
    own = sources.digest().encode()
    libraries = (path for path in sorted(folder.glob("libeagre_*.so")) if path.name not in _OF_TESTS)
    return [path.name for path in libraries if own not in path.read_bytes()]


def write_figures(path: Path | None, program: str, arguments: Sequence[str], **figures: Any) -> None:
    """Writes figures as JSON, together with the command and the machine that made them; nothing without a path."""
    if path is None:
        return
    record = {
        "command": shlex.join(["python", "-m", program, *arguments]),
        "time": datetime.now(UTC),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "num_cores": os.cpu_count(),
        **figures,
    }
    path.write_bytes(orjson.dumps(record, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
