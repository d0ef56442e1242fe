"""Leak checks of a server that is idle again: pages, requests, descriptors, tasks, memory."""

from __future__ import annotations

import asyncio
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from benchmarks.serving.resources import ResidentMemory

# In bytes, between two looks. Compiled grammars alone may be kept in 128 MiB, of which a hard one takes up to 80; looks
# after each minute of an hour of attacks lay between 717 and 864 MiB without growing. A leak shows in their slope.
MAX_MEMORY_GROWTH = 128 << 20
SETTLED_GROWTH = 1 << 20  # bytes a second, below which the server's memory has settled
# A look itself takes two connections, and one that is just closed may still be there. An hour grew by none, of 13.
MAX_DESCRIPTOR_GROWTH = 2
MAX_TASK_GROWTH = 2
_TASKS = re.compile(r"^eagre_asyncio_tasks(?:{[^}]*})? ([0-9.]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ServerState:
    """What a server holds; of a router the sum of itself and its replicas."""

    stats: dict[str, Any]
    num_streams: int
    num_descriptors: int
    num_tasks: int
    resident_bytes: int
    num_processes: int = 1

    @classmethod
    async def of(cls, session: aiohttp.ClientSession, url: str, pid: int) -> ServerState:
        async with session.get(f"{url}/health") as response:
            health = orjson.loads(await response.read())
        async with session.get(f"{url}/metrics") as response:
            tasks = _TASKS.findall(await response.text())
        # A replica that has just been lost has no health.
        replicas = [replica["health"] for replica in health.get("replicas", {}).values() if replica["health"]]
        pids = [pid, *_replicas_of(pid)] if "replicas" in health else [pid]
        memories = [ResidentMemory.of(each) for each in pids]
        return cls(
            stats=_sum([replica["stats"] for replica in replicas]) if "replicas" in health else health["stats"],
            num_streams=health["num_streams"],
            num_descriptors=sum(map(_count_descriptors, pids)),
            num_tasks=int(sum(map(float, tasks))),
            resident_bytes=sum(memory.now for memory in memories if memory is not None),
            num_processes=len(pids),
        )

    @property
    def is_idle(self) -> bool:
        held = self.stats["num_running"], self.stats["num_waiting"], self.stats["num_active_pages"], self.num_streams
        return not any(held)

    def leaks_since(self, before: ServerState) -> list[str]:
        stats = self.stats
        whole = stats["num_free_pages"] + stats["num_cached_pages"] + stats["num_active_pages"]
        growth = self.resident_bytes - before.resident_bytes
        checks = [
            (stats["num_active_pages"] == 0, f"{stats['num_active_pages']} pages leaked"),
            (whole == stats["num_pages"], f"the pool has {whole} of its {stats['num_pages']} pages"),
            (stats["num_running"] + stats["num_waiting"] + self.num_streams == 0, "requests are left"),
            (stats["compiles_after_ready"] == 0, f"{stats['compiles_after_ready']} compiles after readiness"),
            (
                self.num_descriptors <= before.num_descriptors + MAX_DESCRIPTOR_GROWTH * self.num_processes,
                f"{self.num_descriptors} descriptors are open; before there were {before.num_descriptors}",
            ),
            (
                self.num_tasks <= before.num_tasks + MAX_TASK_GROWTH * self.num_processes,
                f"{self.num_tasks} tasks run; before there were {before.num_tasks}",
            ),
            (growth <= MAX_MEMORY_GROWTH * self.num_processes, f"memory grew by {growth >> 20} MiB"),
        ]
        return [sentence for is_good, sentence in checks if not is_good]


def _sum(stats: list[dict[str, Any]]) -> dict[str, Any]:
    """The counters of several engines together."""
    counters = {name for each in stats for name, value in each.items() if isinstance(value, int)}
    return {name: sum(each[name] for each in stats) for name in counters}


def _replicas_of(pid: int) -> list[int]:
    """The processes of a router's replicas: children of it that lead a session of their own, on Linux."""
    replicas = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # a thread of the router has ended meanwhile; it has left its children to another one
            for child in map(int, children.read_text().split()):
                with suppress(ProcessLookupError):  # it has ended
                    if os.getsid(child) == child:
                        replicas.append(child)
    return sorted(replicas)


def _count_descriptors(pid: int) -> int:
    """Open files and sockets of a process; 0 on systems other than Linux."""
    folder = Path(f"/proc/{pid}/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0


async def when_idle(
    session: aiohttp.ClientSession, url: str, pid: int, seconds: float = 60.0, *, since: ServerState | None = None
) -> ServerState:
    """The state once nothing runs any more and memory has settled, or after `seconds`.

    After its start a server still loads compiled programs, which takes long on a busy machine. With `since`, the wait
    goes on while something seems to have leaked: helper processes that have nothing to do end a little later.
    """
    state = await ServerState.of(session, url, pid)
    for _ in range(int(seconds)):
        before = state
        await asyncio.sleep(1.0)  # also for connections that are just being closed
        state = await ServerState.of(session, url, pid)
        is_settled = state.resident_bytes - before.resident_bytes < SETTLED_GROWTH
        if before.is_idle and state.is_idle and is_settled and not (since and state.leaks_since(since)):
            break
    return state
