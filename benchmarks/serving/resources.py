"""Processor time and resident memory of processes, read from Linux's /proc; None on other systems."""

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


class OtherLoad:
    """Measures from its construction on what other processes take of the processors, so that noise is known as such."""

    def __init__(self) -> None:
        self._start = now() if STAT.exists() else None

    def share(self) -> float | None:
        """The share of all processors' time that other processes have had since the start, 0 to 1."""
        if self._start is None:
            return None
        passed = Moment(*(end - start for end, start in zip(now(), self._start, strict=True)))
        share = (passed.busy - passed.ours) / (passed.wall * (os.cpu_count() or 1))
        return min(max(share, 0.0), 1.0)  # the kernel counts in ticks


def now() -> Moment:
    user, nice, system, _, _, interrupts, soft_interrupts, steal, *_ = map(int, STAT.read_text().split()[1:11])
    busy = user + nice + system + interrupts + soft_interrupts + steal
    return Moment(time.monotonic(), busy / os.sysconf("SC_CLK_TCK"), our_time())


def our_time() -> float:
    """Processor seconds of this process and its children."""
    times = os.times()
    ended = times.user + times.system + times.children_user + times.children_system
    return ended + sum(time_of(pid) or 0.0 for pid in _children("self"))  # none: it has just ended


def process_tree(pid: int) -> list[int]:
    """A process and all its descendants that still run."""
    found = [pid]
    for parent in found:  # the list grows meanwhile
        found += _children(parent)
    return found


def _children(pid: int | str) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, path.read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread has just ended
    return found


def time_of(pid: int) -> float | None:
    """Processor seconds of all threads of a process; None also where it has ended."""
    try:
        # The name may contain spaces and brackets. Behind it, fields 12 and 13 are the user and system ticks.
        fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class ResidentMemory(NamedTuple):
    """Bytes of memory of a process, without its children."""

    now: int
    peak: int  # since the process began

    @classmethod
    def of(cls, pid: int) -> ResidentMemory | None:
        if not Path("/proc/self/status").exists():
            return None
        try:
            lines = Path("/proc", str(pid), "status").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            raise ProcessLookupError(f"there is no process {pid}") from None
        kibibytes = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
        if "VmRSS" not in kibibytes:
            raise ProcessLookupError(f"process {pid} has ended")
        return cls(int(kibibytes["VmRSS"][0]) * 1024, int(kibibytes["VmHWM"][0]) * 1024)
