"""A table of compiled programs. All are compiled or loaded before readiness; a later compile is counted as a defect."""

import logging
import threading
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import jax
import jax.monitoring

from engine.interface.types import Progress
from engine.step.program_cache import ProgramCache
from engine.weights.concurrently import num_threads
from engine.weights.host_memory import give_back_freed

_BACKEND_COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"

_CLOSE_SECONDS = 1.0  # the wait for a program that is being loaded, which takes some hundredths

Program = Callable[..., Any]

_log = logging.getLogger(__name__)


class CompiledPrograms:
    """The compiled programs of an engine, by key."""

    def __init__(self) -> None:
        self.are_loaded = threading.Event()  # not set while programs are loaded, or it is not known yet whether any are
        self._programs: dict[Hashable, Program] = {}
        self._late: dict[Hashable, _LateProgram] = {}  # that are not loaded yet
        self._loader: threading.Thread | None = None
        self._is_closed = False  # the loader ends after the program that it is at

    def compile(
        self, lowerings: Mapping[Hashable, Callable[[], jax.stages.Lowered]], progress: Progress,
        kept: ProgramCache | None = None,
    ) -> None:  # fmt: skip
        """Compiles programs in `num_threads()` threads, because XLA compiles without holding the interpreter lock.

        Of those in the cache only the first is loaded here, which shows whether JAX can read them. A thread loads the
        others afterwards, or a step that needs one earlier: to load all takes longer than a request's first token.

        Args:
            lowerings: for each key, a function that traces the program with abstract shapes.
            progress: called with the number of programs that need not be compiled any more.
            kept: the cache of earlier starts, to which new programs are added.
        """
        late: dict[Hashable, _LateProgram] = {}
        if kept is not None:
            late = {key: _LateProgram(key, kept, lower) for key, lower in lowerings.items() if key in kept}
            if late:
                key = next(iter(late))
                first = kept.load(key)
                if first is None:
                    late = {}
                else:
                    self._programs[key] = first
        num_kept = len(late)
        missing = [key for key in lowerings if key not in late]
        self._late = {key: program for key, program in late.items() if key not in self._programs}
        if not self._late:
            self.are_loaded.set()

        def make(key: Hashable) -> tuple[Hashable, Program]:
            return key, lowerings[key]().compile()

        progress("compile", 0, len(lowerings))
        if num_kept:
            progress("compile", num_kept, len(lowerings))
        with ThreadPoolExecutor(num_threads(), thread_name_prefix="eagre-compile") as workers:
            futures = [workers.submit(make, key) for key in missing]
            new: dict[Hashable, Program] = {}
            for done, future in enumerate(as_completed(futures), start=num_kept + 1):
                key, new[key] = future.result()
                progress("compile", done, len(lowerings))
        self._programs |= new
        if kept is not None and new:
            kept.add(new)
        self.start()

    def __getitem__(self, key: Hashable) -> Program:
        """Raises KeyError if the key was never compiled, which is a defect of the shape table."""
        program = self._programs.get(key)
        if program is None:
            late = self._late.get(key)
            if late is None:
                return self._programs[key]  # it may have been loaded just now
            program = self._programs[key] = late.load()
            self._late.pop(key, None)
        return program

    def start(self) -> None:
        """Starts to load the remaining programs. Where the system gives no thread, each is loaded when it is needed."""
        self._is_closed = False
        if not self._late or (self._loader is not None and self._loader.is_alive()):
            return
        self.are_loaded.clear()
        loader = threading.Thread(target=self._load_late, name="eagre-programs")
        try:
            loader.start()
        except (RuntimeError, MemoryError):
            self.are_loaded.set()
        else:
            self._loader = loader

    def close(self) -> None:
        """Ends the thread that loads programs, soon; `start` starts it again. Idempotent; never raises."""
        self._is_closed = True
        self.are_loaded.set()
        if self._loader is not None:
            self._loader.join(_CLOSE_SECONDS)

    def _load_late(self) -> None:
        try:
            for key in list(self._late):
                # The interpreter waits for this thread when it ends, and runs nothing before that could close it.
                if self._is_closed or not threading.main_thread().is_alive():
                    return
                try:
                    self[key]
                except Exception:  # noqa: BLE001
                    # Whoever needs the program tries again, and meets the error where it can be answered for.
                    _log.warning("a program could neither be loaded nor compiled: %s", key, exc_info=True)
            give_back_freed()
        finally:
            self.are_loaded.set()


class _LateProgram:
    """A cached program, which the first thread that needs it loads."""

    def __init__(self, key: Hashable, kept: ProgramCache, lower: Callable[[], jax.stages.Lowered]) -> None:
        self._key = key
        self._kept = kept
        self._lower = lower
        self._lock = threading.Lock()
        self._program: Program | None = None

    def load(self) -> Program:
        """The program, which one thread loads while the others wait for it; compiled where JAX cannot read it."""
        with self._lock:
            if self._program is None:
                self._program = self._kept.load(self._key)
            if self._program is None:
                self._program = self._lower().compile()
                self._kept.forget(self._key)
            return self._program


class CompileCounter:
    """Counts the XLA compiles of an engine's thread between `start` and `stop`; after readiness each is a defect."""

    def __init__(self) -> None:
        self.count = 0
        self._thread: threading.Thread | None = None
        jax.monitoring.register_event_duration_secs_listener(self._on_event)

    def start(self, thread: threading.Thread) -> None:
        """Counts the compiles in `thread` from now on."""
        self._thread = thread

    def stop(self) -> None:
        """Stops counting. The listener stays registered, because jax offers no way to remove it."""
        self._thread = None

    def _on_event(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == _BACKEND_COMPILE_EVENT and threading.current_thread() is self._thread:
            self.count += 1
