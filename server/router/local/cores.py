"""The cores of this machine that a process may use, as the native kernels count them."""

import os
from pathlib import Path

SYSTEM = Path("/sys/devices/system")  # of Linux
CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")  # of a container


def num_cores(processors: frozenset[int] | None, system: Path = SYSTEM) -> int:
    """How many cores these processors belong to, which are their hardware threads.

    None: all that this process may use. Where the system does not say, each is a core.
    """
    if processors is None:
        if not hasattr(os, "sched_getaffinity"):
            return os.cpu_count() or 1
        processors = frozenset(os.sched_getaffinity(0))
    return len({_siblings(processor, system) for processor in processors})


def granted_cores(cpu_limit: Path = CPU_LIMIT) -> int | None:
    """The cores' worth of time that a container's control group (version 2) grants; None: it sets no limit."""
    try:
        quota, period = map(int, cpu_limit.read_text(encoding="ascii").split())  # "200000 100000", or "max 100000"
    except (OSError, ValueError):
        return None
    return max(1, quota // period) if quota > 0 and period > 0 else None


def _siblings(processor: int, system: Path) -> str:
    """The list of the hardware threads of a processor's core, which all of them have."""
    path = system / "cpu" / f"cpu{processor}" / "topology" / "thread_siblings_list"
    try:
        return path.read_text(encoding="ascii").strip() or str(processor)
    except (OSError, ValueError):
        return str(processor)
