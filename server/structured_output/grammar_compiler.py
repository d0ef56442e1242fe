"""Compiles each grammar once, in threads and within a time limit, and caches the latest ones."""

import asyncio
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

from engine.interface.types import QueueFull
from sampling.host.params import InvalidParameter
from server.protocol.structured_outputs import Grammar
from server.structured_output.compile_worker import WALL_TIME_FACTOR
from server.structured_output.compiled_grammar import CompiledGrammar
from server.structured_output.grammar_limits import (
    DEFAULT_MAX_BYTES,
    DEFAULT_TIMEOUT,
    GrammarTooExpensive,
    InvalidGrammar,
)
from server.structured_output.grammar_vocabulary import GrammarVocabulary, HasVocabulary
from server.structured_output.large_stack_threads import STACK_BYTES, LargeStackThreads
from server.structured_output.sandboxed_compiler import SandboxedCompiler

MAX_CACHED = 128
MAX_CACHED_BYTES = 1 << 20  # of sources; compiled grammars take far more
NUM_THREADS = 2
SECONDS_TOO_HARD = 60.0  # a grammar that took too long is refused at once for so long, and then tried again

Compile: TypeAlias = Callable[[Grammar, GrammarVocabulary], CompiledGrammar]
Outcome: TypeAlias = CompiledGrammar | InvalidGrammar  # a rejection is cached too, because it may take as much work


@dataclass(slots=True)
class _Job:
    future: Future[Outcome]
    num_waiting: int = 0


class GrammarCompiler:
    """Compiles the grammars of the requests to one model. Its methods may be called in any thread.

    Args:
        vocab_size: of the model's logits.
        timeout: the most seconds of processor time for a grammar. A request waits WALL_TIME_FACTOR times as long.
        max_bytes: the limit of a grammar's source, in UTF-8.
        compile_grammar: compiles one grammar. If None, each grammar is compiled in another process first
            (see `SandboxedCompiler`).
    """

    def __init__(
        self,
        tokenizer: HasVocabulary,
        vocab_size: int,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        max_bytes: int = DEFAULT_MAX_BYTES,
        compile_grammar: Compile | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._timeout = timeout
        self._max_bytes = max_bytes
        self._vocabulary: GrammarVocabulary | None = None
        self._vocabulary_lock = threading.Lock()
        self._sandbox = SandboxedCompiler(tokenizer, vocab_size, timeout)
        self._compile_grammar: Compile = compile_grammar or self._sandbox
        self._threads: LargeStackThreads[Outcome] = LargeStackThreads(NUM_THREADS, STACK_BYTES, "grammar")
        self._lock = threading.Lock()  # protects the fields below
        self._jobs: dict[Grammar, _Job] = {}
        self._cache: OrderedDict[Grammar, Outcome] = OrderedDict()  # least recently used first
        self._expiries: dict[Grammar, float] = {}  # of those refused for a while, on the monotonic clock
        self._num_cached_bytes = 0

    def prepare(self) -> None:
        """Builds the vocabulary before the first grammar needs it.

        It blocks all threads of the process: 0.1 to 0.2 seconds with 50,000 tokens, about one with 260,000.
        """
        with suppress(InvalidGrammar):  # a model without an end token; each grammar is refused
            self._get_vocabulary()

    def close(self) -> None:
        """Ends the worker processes; a later grammar starts a new one."""
        self._sandbox.close()

    async def compile(self, grammar: Grammar, param: str) -> CompiledGrammar:
        """The compiled form of `grammar`, without blocking the event loop; errors name the parameter `param`.

        Raises:
            InvalidParameter: the grammar is rejected or takes too much processor time.
            QueueFull: it is not compiled within WALL_TIME_FACTOR times that time.
        """
        outcome = self._look_up(grammar, param)
        if outcome is None:
            job = self._enter(grammar)
            try:
                # A timeout or a cancelled request does not end the work, because others may wait for it.
                await asyncio.wait([asyncio.wrap_future(job.future)], timeout=self._timeout * WALL_TIME_FACTOR)
            finally:
                self._leave(grammar, job)
            outcome = _outcome_of(job, grammar, param)
        return _accept(outcome, grammar, param)

    def compile_here(self, grammar: Grammar, param: str) -> CompiledGrammar:
        """As `compile`, but blocks; for callers without an event loop."""
        outcome = self._look_up(grammar, param)
        if outcome is None:
            job = self._enter(grammar)
            try:
                wait([job.future], timeout=self._timeout * WALL_TIME_FACTOR)
            finally:
                self._leave(grammar, job)
            outcome = _outcome_of(job, grammar, param)
        return _accept(outcome, grammar, param)

    def _look_up(self, grammar: Grammar, param: str) -> Outcome | None:
        num_bytes = _num_bytes(grammar)
        if num_bytes > self._max_bytes:
            raise InvalidParameter(
                param, f"{param}: {grammar.kind} has {num_bytes} bytes; the limit of this server is {self._max_bytes}"
            )
        with self._lock:
            if self._expiries.get(grammar, math.inf) <= time.monotonic():
                self._evict(grammar)
            if grammar in self._cache:
                self._cache.move_to_end(grammar)
            return self._cache.get(grammar)

    def _enter(self, grammar: Grammar) -> _Job:
        with self._lock:
            job = self._jobs.get(grammar)
            if job is None:
                job = self._jobs[grammar] = _Job(self._threads.submit(lambda: self._work(grammar)))
            job.num_waiting += 1
            return job

    def _leave(self, grammar: Grammar, job: _Job) -> None:
        """Stops waiting; cancels the job if it has not begun and no other request waits for it."""
        with self._lock:
            job.num_waiting -= 1
            if job.num_waiting == 0 and self._jobs.get(grammar) is job and job.future.cancel():
                del self._jobs[grammar]

    def _work(self, grammar: Grammar) -> Outcome:
        """Compiles in a thread. A result that comes too late is cached for the next request."""
        outcome: Outcome | None = None
        try:
            outcome = self._compile_grammar(grammar, self._get_vocabulary())
        except InvalidGrammar as refusal:
            outcome = type(refusal)(str(refusal))  # a new one, because the traceback of `refusal` keeps objects alive
        finally:
            with self._lock:
                self._jobs.pop(grammar, None)
                if outcome is not None:
                    self._store(grammar, outcome)
        return outcome

    def _get_vocabulary(self) -> GrammarVocabulary:
        with self._vocabulary_lock:
            if self._vocabulary is None:
                self._vocabulary = GrammarVocabulary(self._tokenizer, self._vocab_size)
            return self._vocabulary

    def _store(self, grammar: Grammar, outcome: Outcome) -> None:
        if grammar not in self._cache:  # a second job may follow a look-up just before the first
            self._num_cached_bytes += _num_bytes(grammar)
        self._cache[grammar] = outcome
        if isinstance(outcome, GrammarTooExpensive):
            self._expiries[grammar] = time.monotonic() + SECONDS_TOO_HARD
        while len(self._cache) > MAX_CACHED or self._num_cached_bytes > MAX_CACHED_BYTES:
            self._evict(next(iter(self._cache)))

    def _evict(self, grammar: Grammar) -> None:
        del self._cache[grammar]
        self._expiries.pop(grammar, None)
        self._num_cached_bytes -= _num_bytes(grammar)


def _outcome_of(job: _Job, grammar: Grammar, param: str) -> Outcome:
    if job.future.cancelled():
        raise QueueFull("other grammars are being compiled; try again later")
    if not job.future.done():
        raise QueueFull(f"{param}: {grammar.kind} is still being compiled; try again later")
    return job.future.result()


def _accept(outcome: Outcome, grammar: Grammar, param: str) -> CompiledGrammar:
    if isinstance(outcome, InvalidGrammar):
        raise InvalidParameter(param, f"{param}: {grammar.kind} cannot be used: {outcome}")
    return outcome


def _num_bytes(grammar: Grammar) -> int:
    return len(grammar.source.encode("utf-8", "surrogatepass"))
