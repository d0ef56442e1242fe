"""What other processes take from the processor meanwhile, so that a disturbed measurement is known as such.

Linux tells; elsewhere nothing is known.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

STAT = Path("/proc/stat")


class Moment(NamedTuple):
    wall: float  # seconds; so are the others
    busy: float  # of all processors
    ours: float  # of this process and its children, those that have ended included


class Disturbance:
    """Watches from its construction on."""

    def __init__(self) -> None:
        self._start = now() if STAT.exists() else None

    def share(self) -> float | None:
        """What others have had of all processors' time since the start, 0 to 1; None where nobody tells."""
        if self._start is None:
            return None
        passed = Moment(*(end - start for end, start in zip(now(), self._start, strict=True)))
        share = (passed.busy - passed.ours) / (passed.wall * (os.cpu_count() or 1))
        return min(max(share, 0.0), 1.0)  # the kernel counts in ticks


def now() -> Moment:
    """Linux only."""
    user, nice, system, _, _, interrupts, soft_interrupts, steal, *_ = map(int, STAT.read_text().split()[1:11])
    busy = user + nice + system + interrupts + soft_interrupts + steal
    return Moment(time.monotonic(), busy / os.sysconf("SC_CLK_TCK"), our_time())


def our_time() -> float:
    """Processor seconds of this process and its children; Linux only."""
    times = os.times()
    ended = times.user + times.system + times.children_user + times.children_system
    children = [pid for path in Path("/proc/self/task").glob("*/children") for pid in _words(path)]
    return ended + sum(time_of(pid) or 0.0 for pid in children)  # nothing: it has ended just now


def family_of(pid: int) -> list[int]:
    """A process and all that come from it and still run; itself alone where nobody tells."""
    found = [pid]
    for parent in found:  # the list grows meanwhile
        found += [int(child) for path in Path(f"/proc/{parent}/task").glob("*/children") for child in _words(path)]
    return found


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return []  # the thread has ended just now


def time_of(pid: int | str) -> float | None:
    """Processor seconds of all threads of a process; None where nobody tells, or it has ended."""
    try:
        # The name may contain spaces and brackets. Behind it, fields 12 and 13 are the user and system ticks.
        fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
