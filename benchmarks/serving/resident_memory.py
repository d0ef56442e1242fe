"""The resident memory of a process, as Linux reports it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class ResidentMemory(NamedTuple):
    """Bytes of memory of a process, without its children."""

    now: int
    peak: int  # since the process began

    @classmethod
    def of(cls, pid: int) -> ResidentMemory | None:
        """Reads the memory of a process; None if the system is not Linux.

        Raises:
            ProcessLookupError: the process has ended.
        """
        if not Path("/proc/self/status").exists():
            return None
        try:
            lines = Path("/proc", str(pid), "status").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            raise ProcessLookupError(f"there is no process {pid}") from None
        kibibytes = {
            name: value.split()[0] for name, _, value in (line.partition(":") for line in lines) if value.strip()
        }
        if "VmRSS" not in kibibytes:
            raise ProcessLookupError(f"process {pid} has ended")
        return cls(int(kibibytes["VmRSS"]) * 1024, int(kibibytes["VmHWM"]) * 1024)
