"""Progress on standard error: bars in a terminal, single lines elsewhere."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from tqdm import tqdm

from engine.interface.types import Progress
from server.startup.plain_text import one_line

# The first words of stages that count bytes; all other stages count items.
BYTE_STAGES = frozenset({"download", "load", "unpack", "verify"})

_ITEMS = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]"  # of a bar that counts no bytes


def format_count(stage: str, count: int) -> str:
    """A count as text: `98.4 MB` for a stage that counts bytes, otherwise the plain number."""
    return f"{count / 1e6:.1f} MB" if stage.split(" ", 1)[0] in BYTE_STAGES else str(count)


class ProgressReporter:
    """A `Progress` callback that shows one stage at a time and may be called from any thread.

    A stage begins with the first call that names it. It ends when `done` reaches a known `total`, or when another stage
    begins. A total of 0 is unknown.

        with ProgressReporter() as progress:
            pull("smollm2-135m-instruct", progress)
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._show: type[_Bar] | type[_Lines] = _Bar if self._stream.isatty() else _Lines
        self._lock = threading.Lock()
        self._stage: str | None = None
        self._display: _Bar | _Lines | None = None

    def __call__(self, stage: str, done: int, total: int, note: str = "") -> None:
        stage, note = one_line(stage), one_line(note)  # with names of models and files, which others have chosen
        with self._lock:
            if self._display is None or stage != self._stage:
                self._end()
                self._stage, self._display = stage, self._show(stage, self._stream)
            self._display.update(done, total, note)
            if done >= total > 0:
                self._end()

    def close(self) -> None:
        """Ends the current stage, complete or not, so that other text may follow. Idempotent."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._display is not None:
            self._display.close()
        self._stage, self._display = None, None

    def __enter__(self) -> ProgressReporter:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


@contextmanager
def shown(progress: bool | Progress) -> Iterator[Progress]:
    """A `Progress` by the caller's choice: True shows stages, False is silent, and a callable is used itself."""
    if callable(progress):
        yield progress
    elif progress:
        with ProgressReporter() as reporter:
            yield reporter
    else:
        yield silent


def silent(stage: str, done: int, total: int) -> None:
    """A `Progress` that shows nothing."""


class _Unwatched(tqdm):  # type: ignore[misc]  # tqdm ships no types
    """A bar without tqdm's monitor thread, which redraws slow bars and outlives them."""

    monitor_interval = 0


class _Bar:
    def __init__(self, stage: str, stream: TextIO) -> None:
        # A rate of programs or prompts would say nothing; a note has what there is to say.
        units: dict[str, Any] = {"bar_format": _ITEMS}
        if stage.split(" ", 1)[0] in BYTE_STAGES:
            units = {"unit": "B", "unit_scale": True}
        # tqdm itself shows nothing in a terminal that reports a size of zero, so the size is passed to it.
        size = shutil.get_terminal_size()
        self._bar = _Unwatched(desc=stage, file=stream, ncols=size.columns, nrows=size.lines, **units)

    def update(self, done: int, total: int, note: str) -> None:
        if note:
            self._bar.set_postfix_str(note, refresh=False)
        if total > 0 and self._bar.total != total:
            self._bar.total = total
            self._bar.refresh()
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        self._bar.close()


class _Lines:
    def __init__(self, stage: str, stream: TextIO) -> None:
        self._stage, self._stream = stage, stream
        self._done, self._total, self._note, self._start = 0, 0, "", time.monotonic()
        self._write(f"{stage} ...")

    def update(self, done: int, total: int, note: str) -> None:
        self._done, self._total, self._note = done, total, note

    def close(self) -> None:
        seconds = time.monotonic() - self._start
        note = f", {self._note}" if self._note else ""
        if self._done >= max(1, self._total):
            self._write(f"{self._stage}: done, {format_count(self._stage, self._done)} in {seconds:.1f} s{note}")
        else:
            done, total = (format_count(self._stage, count) for count in (self._done, self._total))
            self._write(f"{self._stage}: ended at {done} of {total} after {seconds:.1f} s{note}")

    def _write(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()
