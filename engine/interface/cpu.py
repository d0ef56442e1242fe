"""The processor that this process runs on: how many of its cores it may use, and its instruction sets."""

import os
import platform
from pathlib import Path


def num_cores() -> int:
    """The number of cores that this process may use; the machine may have more."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_features() -> str:
    """The instruction set extensions of the processor, as a text; XLA generates different code where they differ."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        return f"{platform.machine()} {platform.processor()}"
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())
