"""Compiled programs: all are made before readiness, and later compiles are counted as defects."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import jax
import jax.monitoring

from engine.border.types import Progress
from engine.step.kept_programs import KeptPrograms
from engine.weights.concurrently import num_threads

_BACKEND_COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"

Program = Callable[..., Any]


class CompiledPrograms:
    """The compiled programs of an engine, by key."""

    def __init__(self) -> None:
        self._programs: dict[Hashable, Program] = {}

    def compile(
        self, lowerings: Mapping[Hashable, Callable[[], jax.stages.Lowered]], progress: Progress,
        kept: KeptPrograms | None = None,
    ) -> None:  # fmt: skip
        """Makes programs in `num_threads()` threads: XLA compiles and loads without holding the interpreter lock.

        Args:
            lowerings: for each key, a function that traces the program with abstract shapes.
            progress: called with the number of finished programs.
            kept: those of earlier starts, which are loaded; those that must be compiled are added.
        """

        def make(key: Hashable) -> tuple[Hashable, Program, bool]:
            loaded = None if kept is None else kept.load(key)
            return (key, lowerings[key]().compile(), True) if loaded is None else (key, loaded, False)

        with ThreadPoolExecutor(num_threads(), thread_name_prefix="eagre-compile") as workers:
            futures = [workers.submit(make, key) for key in lowerings]
            progress("compile", 0, len(futures))
            new: dict[Hashable, Program] = {}
            for done, future in enumerate(as_completed(futures), start=1):
                key, program, is_new = future.result()
                self._programs[key] = program
                if is_new:
                    new[key] = program
                progress("compile", done, len(futures))
        if kept is not None and new:
            kept.add(new)

    def __getitem__(self, key: Hashable) -> Program:
        """Raises:
        KeyError: the key was never compiled, which is a defect of the shape table.
        """
        return self._programs[key]


class CompileCounter:
    """Counts the XLA compiles of an engine's thread between `start` and `stop`; after readiness each is a defect.

    The process may have several engines. What the others compile, and what a thread compiles that loads one more
    model, is no defect of this one.
    """

    def __init__(self) -> None:
        self.count = 0
        self._thread: threading.Thread | None = None
        jax.monitoring.register_event_duration_secs_listener(self._on_event)

    def start(self, thread: threading.Thread) -> None:
        """Counts from now on what `thread` compiles."""
        self._thread = thread

    def stop(self) -> None:
        """Stops counting. The listener stays registered, because jax offers no way to remove it."""
        self._thread = None

    def _on_event(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == _BACKEND_COMPILE_EVENT and threading.current_thread() is self._thread:
            self.count += 1
