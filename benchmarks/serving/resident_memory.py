"""What a process holds of the machine's memory. Linux tells; elsewhere nothing is known."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class ResidentMemory(NamedTuple):
    """In bytes; of the process alone, without its children."""

    now: int
    peak: int  # since it began

    @classmethod
    def of(cls, pid: int) -> ResidentMemory | None:
        """None where nobody tells.

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
