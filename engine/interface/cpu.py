"""The processor that this process runs on: how many of its cores it may use, and its instruction sets."""

import os
import platform
from collections.abc import Collection
from pathlib import Path

SYSTEM = Path("/sys")  # of Linux


def num_cores() -> int:
    """The number of cores that this process may use; the machine may have more."""
    return len(own_processors())


def own_processors() -> Collection[int]:
    """The processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)


def cores_of(processors: Collection[int], system: Path = SYSTEM) -> int:
    """How many cores these processors are: hardware threads of one core share its vector units.

    A processor of which the system tells nothing is a core by itself.
    """
    cores = set[str]()
    for number in processors:
        try:
            path = system / f"devices/system/cpu/cpu{number}/topology/thread_siblings_list"
            cores.add(path.read_text(encoding="ascii").strip())
        except (OSError, ValueError):
            cores.add(str(number))
    return len(cores)


def granted_cores(system: Path = SYSTEM) -> int | None:
    """Cores' worth of time that a container's control group (version 2) grants, or None where it sets no limit."""
    try:
        quota, period = (system / "fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return max(1, int(quota) // int(period))  # "200000 100000", or "max 100000"
    except (OSError, ValueError, ZeroDivisionError):
        return None


def cpu_features() -> str:
    """The instruction set extensions of the processor, as a text; XLA generates different code where they differ."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        return f"{platform.machine()} {platform.processor()}"
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())
