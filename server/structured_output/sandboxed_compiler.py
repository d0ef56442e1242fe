"""Compiles grammars in a worker process, which can be killed, before they are compiled in the server."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import threading
import time
import weakref
from multiprocessing.connection import Connection

from engine.interface.python_process import python_command, same_modules
from engine.interface.types import QueueFull
from server.protocol.structured_outputs import Grammar
from server.structured_output.compile_worker import (
    TIME_SPENT_SIGNAL,
    WALL_TIME_FACTOR,
    CompileVerdict,
    WorkerVocabulary,
    encode_vocabulary,
)
from server.structured_output.compiled_grammar import CompiledGrammar, has_bounded_digits
from server.structured_output.grammar_limits import GrammarTooExpensive, InvalidGrammar
from server.structured_output.grammar_vocabulary import GrammarVocabulary, HasVocabulary

START = "from server.structured_output.compile_worker import run; run()"
_CANNOT_START = "no process can be started that tries the grammar; try again later"
BACKGROUND_START = "start of a grammar worker"  # the name of a thread that has a process ready before it is needed
START_SECONDS = 120.0  # that a process may take until it is ready; usually it takes less than one
IDLE_SECONDS = 30.0  # after which a process without a grammar ends; each has tens of megabytes of memory
_BUSY = "the machine is too busy to try the grammar now; try again later"


class SandboxedCompiler:
    """Compiles a grammar in a worker process, and then in this one.

    A compilation within this process cannot be ended, nor can the memory it takes be freed. So each is done in
    another process first, which is killed where it takes too long; a grammar that passes takes as long here, and no
    more. Several threads may use it, each of which has a process. Processes are started with the first need; they
    end when they have been idle for IDLE_SECONDS, and with this process, however it ends.

    Args:
        vocab_size: of the model's logits.
        seconds: of processor time that a compilation may take.
        wall_seconds: that it may last; WALL_TIME_FACTOR times as long if None.
        nice: the processes' nice value.
    """

    def __init__(
        self, tokenizer: HasVocabulary, vocab_size: int, seconds: float, *, wall_seconds: float | None = None,
        nice: int = 0,
    ) -> None:  # fmt: skip
        self._seconds = seconds
        self._wall_seconds = wall_seconds
        self._nice = nice
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []  # the longest idle first
        self._idle_timer: threading.Timer | None = None  # while processes are idle
        self._num_closes = 0
        # Runs when this object goes, and at the interpreter's end.
        self._finalizer = weakref.finalize(self, _kill_all, self._idle)

    def __call__(self, grammar: Grammar, vocabulary: GrammarVocabulary) -> CompiledGrammar:
        """Compiles a grammar.

        Raises:
            InvalidGrammar: as `CompiledGrammar.compile`; also where that takes too much processor time or memory.
            QueueFull: the machine is too busy for a compilation, or for one process more.
        """
        verdict = self._try(grammar)
        compiled = CompiledGrammar.from_lark(verdict.lark, vocabulary, limits_digits=has_bounded_digits(grammar))
        compiled.num_bytes = verdict.num_bytes
        return compiled

    def close(self) -> None:
        """Ends the idle processes now, the others when they have finished."""
        with self._lock:
            self._num_closes += 1
            if self._idle_timer is not None:
                self._idle_timer.cancel()
                self._idle_timer = None
            _kill_all(self._idle)

    def start(self) -> None:
        """Starts a process for the first grammar and waits until it is ready, most of a second."""
        self._start(self._num_closes)

    def start_in_background(self) -> None:
        """`start`, in a thread of its own, unless a `close` comes first. The process need not wait for it."""
        num_closes = self._num_closes

        def start() -> None:
            with contextlib.suppress(QueueFull):  # the next grammar tries again, and reports a failure
                self._start(num_closes)

        threading.Thread(target=start, name=BACKGROUND_START, daemon=True).start()

    def _start(self, num_closes: int) -> None:
        if num_closes == self._num_closes:
            self._release(self._take(), num_closes)

    def _try(self, grammar: Grammar) -> CompileVerdict:
        """The verdict on a grammar that can be compiled."""
        num_closes = self._num_closes
        process = self._take()
        try:
            verdict = process.ask(grammar, self._seconds, self._longest)
        except BaseException:
            self._replace(process)
            raise
        if verdict.is_last:
            self._replace(process)
        else:
            self._release(process, num_closes)
        if verdict.refusal is not None:
            raise InvalidGrammar(verdict.refusal)
        return verdict

    @property
    def _longest(self) -> float:
        return self._seconds * WALL_TIME_FACTOR if self._wall_seconds is None else self._wall_seconds

    def _take(self) -> _Worker:
        while True:
            with self._lock:
                process = self._idle.pop() if self._idle else None
            if process is None:
                message = WorkerVocabulary(
                    tuple(self._tokenizer.token_bytes),
                    tuple(self._tokenizer.eos_token_ids),
                    self._vocab_size,
                    self._seconds,
                    self._longest,
                    self._nice,
                )
                return _Worker(message)
            if process.is_alive:
                return process
            process.kill()

    def _replace(self, process: _Worker) -> None:
        process.kill()
        self.start_in_background()

    def _release(self, process: _Worker, num_closes: int) -> None:
        """Keeps a process for the next grammar, unless the compiler has been closed since it was taken."""
        with self._lock:
            if num_closes == self._num_closes:
                process.idle_since = time.monotonic()
                self._idle.append(process)
                if self._idle_timer is None:
                    self._start_idle_timer(IDLE_SECONDS)
                return
        process.kill()

    def _start_idle_timer(self, seconds: float) -> None:
        end_idle = weakref.WeakMethod(self._end_idle)  # the timer's thread does not keep a compiler that nobody uses

        def run() -> None:
            if (method := end_idle()) is not None:
                method()

        self._idle_timer = threading.Timer(seconds, run)
        self._idle_timer.daemon = True
        self._idle_timer.name = "idle grammar workers"
        self._idle_timer.start()

    def _end_idle(self) -> None:
        """Ends the processes that have been idle for IDLE_SECONDS, and comes back for the others."""
        ended, now = list[_Worker](), time.monotonic()
        with self._lock:
            self._idle_timer = None
            while self._idle and now - self._idle[0].idle_since >= IDLE_SECONDS:
                ended.append(self._idle.pop(0))
            if self._idle:
                self._start_idle_timer(self._idle[0].idle_since + IDLE_SECONDS - now)
        _kill_all(ended)


class _Worker:
    """A running `compile_worker` process.

    Raises QueueFull if it cannot start now, because the machine lacks memory, processes or descriptors.
    """

    idle_since = 0.0  # on the monotonic clock

    def __init__(self, message: WorkerVocabulary) -> None:
        try:
            ours, its = socket.socketpair()
        except OSError as error:
            raise QueueFull(f"{_CANNOT_START}: {error.strerror}") from error
        try:
            self._start(its)
        except OSError as error:
            ours.close()
            raise QueueFull(f"{_CANNOT_START}: {error.strerror}") from error
        self._socket = Connection(ours.detach())
        try:
            self._socket.send_bytes(encode_vocabulary(message))
            if not self._socket.poll(START_SECONDS):
                raise TimeoutError
            self._socket.recv_bytes()
        except (EOFError, OSError) as error:
            self.kill()
            raise QueueFull(_CANNOT_START) from error

    def _start(self, its: socket.socket) -> None:
        with its:
            self._process = subprocess.Popen(
                python_command("-c", START, str(its.fileno())),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(its.fileno(),),
                env=same_modules(),
            )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, grammar: Grammar, seconds: float, wall_seconds: float) -> CompileVerdict:
        """Compiles a grammar in the worker and returns whether that failed.

        Raises:
            GrammarTooExpensive: it takes more processor time, or ends the process.
            QueueFull: it did not get that much processor time in `wall_seconds`.
        """
        try:
            self._socket.send_bytes(json.dumps(grammar).encode())
            if not self._socket.poll(wall_seconds):
                raise QueueFull(_BUSY)
            verdict = CompileVerdict(*json.loads(self._socket.recv_bytes()))
        except (EOFError, ConnectionError) as error:
            ended_by_clock = self._process.wait() == -TIME_SPENT_SIGNAL
            too_long = f"it takes longer to compile than {seconds:g} s of processor time, the limit"
            raise GrammarTooExpensive(too_long if ended_by_clock else "it takes too much memory to compile") from error
        return verdict

    def kill(self) -> None:
        """Ends it at once, and waits until it has ended."""
        self._process.kill()
        self._process.wait()
        self._socket.close()


def _kill_all(processes: list[_Worker]) -> None:
    while processes:
        processes.pop().kill()
