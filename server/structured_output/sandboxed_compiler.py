"""Compiles grammars in a worker process, which can be killed, before they are compiled in the server."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import weakref
from multiprocessing.connection import Connection

from engine.interface.types import QueueFull
from server.protocol.structured_outputs import Grammar
from server.structured_output.compile_worker import (
    TIME_SPENT_SIGNAL,
    WALL_TIME_FACTOR,
    CompileVerdict,
    WorkerVocabulary,
    encode_vocabulary,
)
from server.structured_output.compiled_grammar import CompiledGrammar
from server.structured_output.grammar_limits import GrammarTooExpensive, InvalidGrammar
from server.structured_output.grammar_vocabulary import GrammarVocabulary, HasVocabulary

START = "from server.structured_output.compile_worker import run; run()"
_CANNOT_START = "no process can be started that tries the grammar; try again later"
BACKGROUND_START = "start of a grammar worker"  # the name of a thread that has a process ready before it is needed
START_SECONDS = 120.0  # that a process may take until it is ready; usually it takes less than one
_BUSY = "the machine is too busy to try the grammar now; try again later"


class SandboxedCompiler:
    """Compiles a grammar in a worker process, and then in this one.

    A compilation within this process cannot be ended, nor can the memory it takes be freed. So each is done in
    another process first, which is killed where it takes too long; a grammar that passes takes as long here, and no
    more. Several threads may use it, each of which has a process. Processes are started with the first need, and
    end with this process, however it ends.

    Args:
        vocab_size: of the model's logits.
        seconds: of processor time that a compilation may take.
    """

    def __init__(self, tokenizer: HasVocabulary, vocab_size: int, seconds: float) -> None:
        self._seconds = seconds
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._num_closes = 0
        # Runs when this object goes, and at the interpreter's end.
        self._finalizer = weakref.finalize(self, _kill_all, self._idle)

    def __call__(self, grammar: Grammar, vocabulary: GrammarVocabulary) -> CompiledGrammar:
        """Compiles a grammar.

        Raises:
            InvalidGrammar: as `CompiledGrammar.compile`; also where that takes too much processor time or memory.
            QueueFull: the machine is too busy for a compilation, or for one process more.
        """
        self._try(grammar)
        return CompiledGrammar.compile(grammar, vocabulary)

    def close(self) -> None:
        """Ends the idle processes now, the others when they have finished."""
        with self._lock:
            self._num_closes += 1
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
            self._give_back(self._take(), num_closes)

    def _try(self, grammar: Grammar) -> None:
        num_closes = self._num_closes
        process = self._take()
        try:
            verdict = process.ask(grammar, self._seconds)
        except BaseException:
            self._replace(process)
            raise
        if verdict.is_last:
            self._replace(process)
        else:
            self._give_back(process, num_closes)
        if verdict.refusal is not None:
            raise InvalidGrammar(verdict.refusal)

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
                )
                return _Worker(message)
            if process.is_alive:
                return process
            process.kill()

    def _replace(self, process: _Worker) -> None:
        process.kill()
        self.start_in_background()

    def _give_back(self, process: _Worker, num_closes: int) -> None:
        """Keeps a process for the next grammar, unless the compiler has been closed since it was taken."""
        with self._lock:
            if num_closes == self._num_closes:
                self._idle.append(process)
                return
        process.kill()


class _Worker:
    """A running `compile_worker` process.

    Raises QueueFull if it cannot start now, because the machine lacks memory, processes or descriptors.
    """

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
                [sys.executable, "-P", "-c", START, str(its.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(its.fileno(),),
                # The same modules as here, wherever it is started; an empty path is the working folder.
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
            )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, grammar: Grammar, seconds: float) -> CompileVerdict:
        """Compiles a grammar in the worker and returns whether that failed.

        Raises:
            GrammarTooExpensive: it takes more processor time, or ends the process.
            QueueFull: it did not get that much processor time in WALL_TIME_FACTOR times as long.
        """
        try:
            self._socket.send_bytes(json.dumps(grammar).encode())
            if not self._socket.poll(seconds * WALL_TIME_FACTOR):
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
