"""What Perfetto and chrome://tracing demand of a file in the Trace Event Format, JSON's object form.

The format's document, "Trace Event Format" by the Chromium project, says which fields each kind of event has. Complete
events ("X") are a begin and an end in one. Perfetto sorts events by time and puts the slices of a thread on a stack; a
slice that ends behind the one that it began in is dropped.
"""

from __future__ import annotations

import json
from typing import Any

_NANOSECOND = 1e-3  # in microseconds, the format's unit: Perfetto keeps times as whole nanoseconds


def check_trace(text: str) -> dict[str, list[dict[str, Any]]]:
    """Checks a whole file.

    Returns:
        The slices of each thread by its name, in order.

    Raises:
        AssertionError: the format is broken, times are not in order, or slices of a thread overlap without nesting.
    """
    document = json.loads(text, parse_constant=_refuse)
    assert set(document) <= {"traceEvents", "displayTimeUnit"}
    events = document["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    metadata = [event for event in events if event["ph"] == "M"]
    assert events == metadata + slices, "there are complete events and metadata, which comes first, and nothing else"
    processes = {event["pid"]: event["args"]["name"] for event in metadata if event["name"] == "process_name"}
    threads = {
        (event["pid"], event["tid"]): event["args"]["name"] for event in metadata if event["name"] == "thread_name"
    }
    assert all(isinstance(name, str) and name for name in [*processes.values(), *threads.values()])
    times = [event["ts"] for event in slices]
    assert times == sorted(times)
    lanes: dict[str, list[dict[str, Any]]] = {name: [] for name in threads.values()}
    for event in slices:
        assert isinstance(event["name"], str)
        assert event["pid"] in processes
        assert all(isinstance(event[field], int | float) and event[field] >= 0 for field in ("ts", "dur"))
        assert isinstance(event.get("args", {}), dict)
        lanes[threads[event["pid"], event["tid"]]].append(event)
    for lane in lanes.values():
        _check_nesting(lane)
    return lanes


def _check_nesting(lane: list[dict[str, Any]]) -> None:
    open_ends: list[float] = []
    for event in lane:
        while open_ends and open_ends[-1] <= event["ts"] + _NANOSECOND:
            open_ends.pop()
        end = event["ts"] + event["dur"]
        assert not open_ends or end <= open_ends[-1] + _NANOSECOND, f"{event} ends behind what it began in"
        open_ends.append(end)


def _refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} is not JSON")
