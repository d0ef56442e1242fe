"""Records of the servers that `eagre run` has started, in the cache folder: one JSON file and one log for each port."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from server.model_sources.cache_folder import cache_folder

POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """A server in the background. A process id is used again by the system, so the time of its start belongs to it."""

    pid: int
    started: str  # as the system tells it
    url: str
    model: str  # by the name that clients use
    port: int

    @classmethod
    def of(cls, pid: int, url: str, model: str, port: int) -> ServerRecord:
        return cls(pid, _start_of(pid) or "", url, model, port)

    @property
    def is_alive(self) -> bool:
        return _start_of(self.pid) == self.started

    def write(self) -> None:
        path = _folder() / f"{self.port}.json"
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    def remove(self) -> None:
        (_folder() / f"{self.port}.json").unlink(missing_ok=True)

    def stop(self, seconds: float) -> bool:
        """Ends the server, which lets its streams end; False where it still runs after so many seconds."""
        if self.is_alive:
            os.kill(self.pid, signal.SIGTERM)
        end = time.monotonic() + seconds
        while self.is_alive:
            if time.monotonic() > end:
                return False
            time.sleep(POLL_S)
        self.remove()
        return True


def log_file(port: int) -> Path:
    """Where the server at this port writes its log."""
    return _folder() / f"{port}.log"


def running_servers() -> list[ServerRecord]:
    """Those that are alive, in the order of their ports; the records of others are removed."""
    found = []
    for path in _folder().glob("*.json"):
        try:
            record = ServerRecord(**json.loads(path.read_bytes()))
            is_alive = record.is_alive
        except (OSError, ValueError, TypeError):
            continue
        if is_alive:
            found.append(record)
        else:
            record.remove()
    return sorted(found, key=lambda record: record.port)


def _folder() -> Path:
    return cache_folder() / "servers"


def _start_of(pid: int) -> str | None:
    """When a process has started, as `ps` says; None where there is no such process, or it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return None if fields[0] == "Z" else fields[19]
    except FileNotFoundError:
        if Path("/proc/self").exists():
            return None
    told = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return told.stdout.strip() or None
