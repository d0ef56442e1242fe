"""Compiled programs: nothing is compiled after readiness but for defects, which are counted."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import jax
import jax.monitoring

from engine.border.types import Progress
from engine.step.kept_programs import KeptPrograms
from engine.weights.concurrently import num_threads
from engine.weights.host_memory import give_back_freed

_BACKEND_COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"

Program = Callable[..., Any]

_log = logging.getLogger(__name__)


class CompiledPrograms:
    """The compiled programs of an engine, by key."""

    def __init__(self) -> None:
        self._programs: dict[Hashable, Program] = {}
        self._late: dict[Hashable, _LateProgram] = {}  # that are not loaded yet
        self._loader: threading.Thread | None = None
        self._is_closed = False
        self._are_loaded = threading.Event()  # or nobody loads them any more

    def compile(
        self, lowerings: Mapping[Hashable, Callable[[], jax.stages.Lowered]], progress: Progress,
        kept: KeptPrograms | None = None,
    ) -> None:  # fmt: skip
        """Makes programs in `num_threads()` threads, because XLA compiles without holding the interpreter lock.

        Of those of earlier starts only the first is loaded, which shows whether JAX can read them. A thread that
        outlives this call loads the others in order, and whoever needs one before its turn loads it: to load all takes
        longer than the first token of a request.

        Args:
            lowerings: for each key, a function that traces the program with abstract shapes.
            progress: called with the number of programs that need not be compiled any more.
            kept: those of earlier starts; those that must be compiled are added.
        """
        late = [] if kept is None else [key for key in lowerings if key in kept]
        if late and kept is not None:
            first = kept.load(late[0])
            if first is None:
                late = []
            else:
                self._programs[late[0]] = first
        missing = [key for key in lowerings if key not in set(late)]
        progress("compile", 0, len(lowerings))
        if late:
            progress("compile", len(late), len(lowerings))
        with ThreadPoolExecutor(num_threads(), thread_name_prefix="eagre-compile") as workers:
            futures = {workers.submit(lambda key: lowerings[key]().compile(), key): key for key in missing}
            new: dict[Hashable, Program] = {}
            for done, future in enumerate(as_completed(futures), start=len(late) + 1):
                new[futures[future]] = future.result()
                progress("compile", done, len(lowerings))
        self._programs |= new
        if kept is not None and new:
            kept.add(new)
        if kept is not None and late[1:]:
            self._late = {key: _LateProgram(key, kept, lowerings[key]) for key in late[1:]}
            self._loader = threading.Thread(target=self._load_late, name="eagre-programs")
            self._loader.start()
        else:
            self._are_loaded.set()

    def __getitem__(self, key: Hashable) -> Program:
        """Raises:
        KeyError: the key was never compiled, which is a defect of the shape table.
        """
        program = self._programs.get(key)
        if program is None:
            late = self._late.get(key)
            if late is None:
                return self._programs[key]  # it may have been loaded just now
            program = self._programs[key] = late.load()
        return program

    def close(self) -> None:
        """Ends the thread that loads programs; those that are left are loaded when they are needed. Idempotent."""
        self._is_closed = True
        if self._loader is not None:
            self._loader.join()
        self._are_loaded.set()

    def wait(self) -> None:
        """Returns once all programs are loaded, or nobody loads them any more."""
        self._are_loaded.wait()

    def _load_late(self) -> None:
        for key in list(self._late):
            if self._is_closed:
                return
            try:
                self._programs[key] = self._late[key].load()
            except Exception:  # noqa: BLE001
                # Whoever needs the program tries again, and meets the error where it can be answered for.
                _log.warning("a program could neither be loaded nor compiled: %s", key, exc_info=True)
            else:
                del self._late[key]
        self._are_loaded.set()
        give_back_freed()


class _LateProgram:
    """A program of an earlier start, which the first of all threads that need it loads."""

    def __init__(self, key: Hashable, kept: KeptPrograms, lower: Callable[[], jax.stages.Lowered]) -> None:
        self._key = key
        self._kept = kept
        self._lower = lower
        self._lock = threading.Lock()
        self._program: Program | None = None

    def load(self) -> Program:
        """Where JAX can read the first program and not this one, it is compiled, and the next start finds nothing."""
        with self._lock:
            if self._program is None:
                self._program = self._kept.load(self._key)
            if self._program is None:
                self._program = self._lower().compile()
                self._kept.remove()
            return self._program


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
