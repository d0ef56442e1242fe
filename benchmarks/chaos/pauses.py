"""Pauses of the server's asyncio loop, interpreter lock, engine thread or device that delayed streams."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import orjson

LOOP, LOCK, ENGINE, STEP, COLLECTOR = KINDS = "loop", "lock", "engine", "step", "gc"


class Pause(NamedTuple):
    """One pause; times are seconds of `time.perf_counter`, which all processes of a machine share on Linux."""

    # LOOP: a callback waited; LOCK: a thread waited to run Python; ENGINE: the host's part of a step; STEP: the part of
    # the device; COLLECTOR: a garbage collection.
    what: str
    began: float
    seconds: float
    # Where the loop was; what the device computed; what was collected; else the threads that computed meanwhile, and
    # where the busiest was.
    culprit: str = ""
    computed: float = 0.0  # of a LOOP pause: seconds of processor time that the loop's thread took

    def to_line(self) -> bytes:
        return orjson.dumps(self._asdict(), option=orjson.OPT_APPEND_NEWLINE)


class Pauses:
    """The pauses that the watcher within a server has written to a file, one a line."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def longest(self, began: float, ended: float) -> list[Pause]:
        """The longest pause of each kind that began between two times."""
        return longest_of_each(self._between(began, ended))

    def longest_turn(self, began: float, ended: float) -> float:
        """The most seconds of processor time that the loop's thread took in one pause of the loop."""
        return max((pause.computed for pause in self._between(began, ended)), default=0.0)

    def _between(self, began: float, ended: float) -> list[Pause]:
        if not self._path.exists():
            return []
        lines = self._path.read_bytes().splitlines(keepends=True)
        # The watcher may be in the middle of its last line.
        read = [Pause(**orjson.loads(line)) for line in lines if line.endswith(b"\n")]
        return [pause for pause in read if began <= pause.began < ended]


def longest_of_each(pauses: Iterable[Pause]) -> list[Pause]:
    """The longest of each kind. An engine's pause without a culprit gets that of the lock's pause within it."""
    known = list(pauses)
    found = []
    for what in KINDS:
        longest = max((pause for pause in known if pause.what == what), key=lambda pause: pause.seconds, default=None)
        if longest is None:
            continue
        if not longest.culprit:
            within = (pause for pause in known if pause.what == LOCK and _overlap(pause, longest))
            culprit = max(within, key=lambda pause: pause.seconds, default=None)
            longest = longest._replace(culprit="" if culprit is None else culprit.culprit)
        found.append(longest)
    return found


def describe(pause: Pause) -> str:
    return f"{pause.what:>6} {1000 * pause.seconds:6.1f} ms  {pause.culprit or 'no thread of Python computed'}"


def _overlap(one: Pause, other: Pause) -> bool:
    return one.began < other.began + other.seconds and other.began < one.began + one.seconds
