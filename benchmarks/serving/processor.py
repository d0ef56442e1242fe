"""Measures how much other processes use the processors, so that a disturbed measurement can be recognised.

It works on Linux only; elsewhere the share is None.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

STAT = Path("/proc/stat")


class Moment(NamedTuple):
    wall: float  # seconds
    busy: float  # seconds of all processors
    ours: float  # processor seconds of this process and its children, including ended ones


class Disturbance:
    """The use of the processors by others since this object was made."""

    def __init__(self) -> None:
        self._start = now() if STAT.exists() else None

    def share(self) -> float | None:
        """The share of the time of all processors that others used, 0 to 1; None if the system does not report it."""
        if self._start is None:
            return None
        passed = Moment(*(end - start for end, start in zip(now(), self._start, strict=True)))
        share = (passed.busy - passed.ours) / (passed.wall * (os.cpu_count() or 1))
        return min(max(share, 0.0), 1.0)  # limited, because the kernel counts in coarse ticks


def now() -> Moment:
    """The present counts of the kernel; Linux only."""
    user, nice, system, _, _, interrupts, soft_interrupts, steal, *_ = map(int, STAT.read_text().split()[1:11])
    busy = user + nice + system + interrupts + soft_interrupts + steal
    return Moment(time.monotonic(), busy / os.sysconf("SC_CLK_TCK"), our_time())


def our_time() -> float:
    """Processor seconds of this process and its children; Linux only."""
    times = os.times()
    ended = times.user + times.system + times.children_user + times.children_system
    return ended + sum(_time_of(pid) for path in Path("/proc/self/task").glob("*/children") for pid in _words(path))


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return []  # the thread has just ended


def _time_of(pid: str) -> float:
    try:
        # The name may contain spaces and brackets. Behind it, fields 12 and 13 are the user and system ticks.
        fields = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0  # the process has just ended
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
