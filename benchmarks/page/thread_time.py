"""The processor time of the page's thread, from the browser's trace; its wall time includes waits for a processor."""

import asyncio
import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from tests.static.support.devtools import Page

_TASK = "ThreadControllerImpl::RunTask"  # one turn of a thread's loop, scripts, layout and painting included
_THREAD = "CrRendererMain"
_READ = 10_000_000  # characters of the trace in one answer
_POLL_INTERVAL = 0.05  # seconds
_TIMEOUT = 60.0  # seconds for the browser to end a trace


class Task(NamedTuple):
    """One turn of the page's thread, in milliseconds of the page's own clock (`performance.now()`)."""

    began: float
    ended: float
    worked: float  # for how long a processor ran it


class ThreadTime:
    """The turns of a page's thread between `start` and `stop`, from the browser's own trace."""

    def __init__(self, page: Page) -> None:
        self._page = page

    async def start(self) -> None:
        """Begins the trace. The page's `Performance` domain must be on."""
        config = {
            "includedCategories": ["toplevel"],
            "recordMode": "recordAsMuchAsPossible",
            "traceBufferSizeInKb": 400_000,
        }
        await self._page.send("Tracing.start", {"traceConfig": config, "transferMode": "ReturnAsStream"})

    async def stop(self) -> list[Task]:
        found = await self._page.send("Performance.getMetrics")
        origin = next(float(metric["value"]) for metric in found["metrics"] if metric["name"] == "NavigationStart")
        await self._page.send("Tracing.end")
        handle = await self._handle()
        parts = []
        while True:
            part = await self._page.send("IO.read", {"handle": handle, "size": _READ})
            parts.append(part["data"])
            if part["eof"]:
                break
        await self._page.send("IO.close", {"handle": handle})
        return tasks_of(json.loads("".join(parts))["traceEvents"], origin)

    async def _handle(self) -> str:
        async with asyncio.timeout(_TIMEOUT):
            while True:
                for name, params in self._page.events:
                    if name == "Tracing.tracingComplete":
                        handle: str = params["stream"]
                        return handle
                await asyncio.sleep(_POLL_INTERVAL)  # the page has no callbacks for its events


def tasks_of(events: Iterable[dict[str, Any]], origin: float) -> list[Task]:
    """The tasks of the busiest page's thread in a trace, in order; `origin` is the page clock's start in seconds."""
    threads: dict[tuple[int, int], list[Task]] = {}
    names: dict[tuple[int, int], str] = {}
    for event in events:
        key = event["pid"], event["tid"]
        if event["name"] == "thread_name":
            names[key] = event["args"]["name"]
        elif event["name"] == _TASK and event["ph"] == "X" and "tdur" in event:
            began = event["ts"] / 1e3 - 1e3 * origin
            threads.setdefault(key, []).append(Task(began, began + event["dur"] / 1e3, event["tdur"] / 1e3))
    pages = [tasks for key, tasks in threads.items() if names.get(key) == _THREAD]
    return sorted(max(pages, key=lambda tasks: sum(task.worked for task in tasks), default=[]))


def worked_between(tasks: Iterable[Task], began: float, ended: float) -> float:
    """Milliseconds of work between two moments; of a task that lies there in part, that part."""
    total = 0.0
    for task in tasks:
        shared = min(task.ended, ended) - max(task.began, began)
        if shared > 0:
            total += task.worked * shared / (task.ended - task.began)
    return total
