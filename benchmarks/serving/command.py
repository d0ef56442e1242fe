"""Common parts of the benchmark commands: how they end, and the file of their figures."""

from __future__ import annotations

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

from benchmarks.serving.server_process import ROOT, ServerFailed
from engine.backends.native.sources import digest

KERNELS = ROOT / "engine" / "backends" / "native"
_OF_TESTS = ("libeagre_plain.so", "libeagre_amx_emulated.so")  # no server chooses them by itself


def run(program: str, main: Callable[[Sequence[str]], int]) -> NoReturn:
    """Runs `main` with the arguments of the command line and ends the process with its status."""
    # As with SIGINT, the servers that were started are stopped first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = Path(os.environ.get("EAGRE_NATIVE_FOLDER") or KERNELS)
    if os.environ.get("EAGRE_NATIVE_VARIANT") != "none" and (stale := stale_kernels(folder)):
        sys.exit(
            f"{program}: {', '.join(stale)} in {folder}: of other sources than lie in {KERNELS}; run `make native`"
        )
    try:
        sys.exit(main(sys.argv[1:]))
    except (ServerFailed, urllib.error.URLError) as error:
        sys.exit(f"{program}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


def stale_kernels(folder: Path) -> list[str]:
    """The libraries in a folder that are not of these sources.

    With those alone a server would compute with XLA, which is slower, and tell its log only.
    """
    own = digest().encode()
    libraries = (path for path in sorted(folder.glob("libeagre_*.so")) if path.name not in _OF_TESTS)
    return [path.name for path in libraries if own not in path.read_bytes()]


def write_figures(path: Path, program: str, arguments: Sequence[str], **figures: Any) -> None:
    """Writes figures as JSON, together with the command and the machine that made them."""
    record = {
        "command": shlex.join(["python", "-m", program, *arguments]),
        "time": datetime.now(UTC),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "num_cores": os.cpu_count(),
        **figures,
    }
    path.write_bytes(orjson.dumps(record, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
