"""Small C++ libraries around parts of the kernels' sources, for their tests."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S

SOURCES = Path(__file__).parents[5] / "engine" / "backends" / "native" / "src"
OF_POOL = (
    "runtime/pool.cc", "runtime/thread_affinity.cc", "runtime/turns.cc", "nodes/topology.cc", "nodes/thread_nodes.cc",
)  # fmt: skip
COMPILER = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)


def build(text: str, folder: Path, *sources: str, flags: Sequence[str] = ()) -> ctypes.CDLL:
    """A library of a harness and of sources, such as "runtime/pool.cc"; skips the test without a compiler."""
    if COMPILER is None:
        pytest.skip("there is no C++ compiler")
    (folder / "harness.cc").write_text(text)
    path = folder / "harness.so"
    inputs = [str(folder / "harness.cc"), *(str(SOURCES / name) for name in sources)]
    command = [COMPILER, "-std=c++17", "-O1", "-fPIC", "-pthread", "-shared", f"-I{SOURCES}", *flags, *inputs]
    subprocess.run([*command, "-o", str(path)], check=True, timeout=PATIENCE_S)
    return ctypes.CDLL(str(path))
