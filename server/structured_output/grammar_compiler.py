"""Compiles each grammar once, in threads and within a time limit, and caches the latest ones.

Grammars wait in two queues, which serve tenants by turns: one for simple grammars, which take milliseconds, and one for
hard ones, which are compiled one at a time and at a low priority. A simple grammar never waits for a hard one."""

import asyncio
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

from engine.interface.background import CALM_NICE
from engine.interface.types import QueueFull
from sampling.host.params import InvalidParameter
from server.admission.keyring import caller
from server.protocol.structured_outputs import Grammar
from server.structured_output.compile_worker import WALL_TIME_FACTOR
from server.structured_output.compiled_grammar import LARGE_BYTES, CompiledGrammar, start_freeing
from server.structured_output.grammar_difficulty import is_simple
from server.structured_output.grammar_limits import (
    DEFAULT_MAX_BYTES,
    DEFAULT_TIMEOUT,
    LARGEST_MAX_BYTES,
    GrammarTooExpensive,
    InvalidGrammar,
)
from server.structured_output.grammar_vocabulary import GrammarVocabulary, HasVocabulary
from server.structured_output.large_stack_threads import STACK_BYTES, LargeStackThreads
from server.structured_output.sandboxed_compiler import SandboxedCompiler

TOOLS = "tools"  # the parameter whose grammars may be larger: agents send hundreds of tools
TIMES_OF_TOOLS = 4  # than others
MAX_CACHED = 128
MAX_CACHED_BYTES = 1 << 20  # of sources
MAX_CACHED_MEMORY = 128 << 20  # bytes that the cached grammars take; a schema takes a third of 1 MiB, a hard one 80
NUM_THREADS = 2  # for simple grammars
NUM_HARD_THREADS = 1  # a hard grammar takes no more than a part of one core
# Linux gives a thread of this nice value a tenth of the time that the engine's threads get, where all want one core.
HARD_NICE = 10
SIMPLE_SECONDS = 0.25  # of processor time; a grammar that takes longer to compile counts as hard
MAX_KNOWN_HARD = 1024
SECONDS_TOO_HARD = 60.0  # a grammar that took too long is refused at once for so long, and then tried again

Compile: TypeAlias = Callable[[Grammar, GrammarVocabulary], CompiledGrammar]
Outcome: TypeAlias = CompiledGrammar | InvalidGrammar  # a rejection is cached too, because it may take as much work


@dataclass(slots=True)
class _Job:
    is_hard: bool
    future: Future[Outcome | None] = field(default_factory=Future)  # None: it is too hard for the simple ones' queue
    owners: set[str] = field(default_factory=set)  # in whose queues it waits
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
        self._sandboxes = (
            SandboxedCompiler(
                tokenizer,
                vocab_size,
                min(SIMPLE_SECONDS, timeout),
                wall_seconds=timeout * WALL_TIME_FACTOR,
                nice=CALM_NICE,
            ),
            SandboxedCompiler(tokenizer, vocab_size, timeout, nice=HARD_NICE),
        )
        self._compile_grammar = compile_grammar
        self._simple_threads = LargeStackThreads[None](NUM_THREADS, STACK_BYTES, "grammar", nice=CALM_NICE)
        self._hard_threads = LargeStackThreads[None](NUM_HARD_THREADS, STACK_BYTES, "hard_grammar", nice=HARD_NICE)
        self._lock = threading.Lock()  # protects the fields below
        self._jobs: dict[Grammar, _Job] = {}
        self._known_hard: OrderedDict[Grammar, None] = OrderedDict()  # that look simple; the oldest first
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
        for sandbox in self._sandboxes:
            sandbox.close()

    async def compile(self, grammar: Grammar, param: str) -> CompiledGrammar:
        """The compiled form of `grammar`, without blocking the event loop; errors name the parameter `param`.

        Raises:
            InvalidParameter: the grammar is rejected or takes too much processor time.
            QueueFull: it is not compiled within WALL_TIME_FACTOR times that time.
        """
        outcome = self._look_up(grammar, param)
        until = time.monotonic() + self._timeout * WALL_TIME_FACTOR
        while outcome is None:
            job = self._enter(grammar)
            try:
                # A timeout or a cancelled request does not end the work, because others may wait for it.
                await asyncio.wait([_done(job)], timeout=until - time.monotonic())
            finally:
                self._leave(grammar, job)
            outcome = _outcome_of(job, grammar, param)
        return _accept(outcome, grammar, param)

    def compile_here(self, grammar: Grammar, param: str) -> CompiledGrammar:
        """As `compile`, but blocks; for callers without an event loop."""
        outcome = self._look_up(grammar, param)
        until = time.monotonic() + self._timeout * WALL_TIME_FACTOR
        while outcome is None:
            job = self._enter(grammar)
            try:
                wait([job.future], timeout=until - time.monotonic())
            finally:
                self._leave(grammar, job)
            outcome = _outcome_of(job, grammar, param)
        return _accept(outcome, grammar, param)

    def _look_up(self, grammar: Grammar, param: str) -> Outcome | None:
        num_bytes, most = _num_bytes(grammar), self._max_bytes
        if param == TOOLS:
            most = min(TIMES_OF_TOOLS * most, LARGEST_MAX_BYTES)
        if num_bytes > most:
            raise InvalidParameter(
                param, f"{param}: {grammar.kind} has {num_bytes} bytes; the limit of this server is {most}"
            )
        with self._lock:
            if self._expiries.get(grammar, math.inf) <= time.monotonic():
                self._evict(grammar)
            if grammar in self._cache:
                self._cache.move_to_end(grammar)
            return self._cache.get(grammar)

    def _enter(self, grammar: Grammar) -> _Job:
        owner = caller()
        with self._lock:
            job = self._jobs.get(grammar)
            if job is None:
                job = self._jobs[grammar] = _Job(grammar in self._known_hard or not is_simple(grammar))
                if job.is_hard:
                    start_freeing()
            if owner not in job.owners and not job.future.running():
                job.owners.add(owner)  # whoever's turn comes first
                threads = self._hard_threads if job.is_hard else self._simple_threads
                threads.submit(lambda: self._begin(grammar, job), owner)
            job.num_waiting += 1
            return job

    def _leave(self, grammar: Grammar, job: _Job) -> None:
        """Stops waiting; cancels the job if it has not begun and no other request waits for it."""
        with self._lock:
            job.num_waiting -= 1
            if job.num_waiting == 0 and self._jobs.get(grammar) is job and job.future.cancel():
                del self._jobs[grammar]

    def _begin(self, grammar: Grammar, job: _Job) -> None:
        """Does the job, unless its work has begun in another owner's turn, or nobody waits for it any more."""
        with self._lock:
            if job.future.running() or job.future.done() or not job.future.set_running_or_notify_cancel():
                return
        try:
            outcome = self._work(grammar, is_hard=job.is_hard)
        except BaseException as error:  # noqa: BLE001 - it is raised again where the future is awaited
            job.future.set_exception(error)
            del job  # an error keeps the variables of its frames, and the future keeps the error
        else:
            job.future.set_result(outcome)

    def _work(self, grammar: Grammar, *, is_hard: bool) -> Outcome | None:
        """Compiles in a thread. A result that comes too late is cached for the next request."""
        outcome: Outcome | None = None
        compile_grammar = self._compile_grammar or self._sandboxes[is_hard]
        is_too_hard = False
        try:
            outcome = compile_grammar(grammar, self._get_vocabulary())
        except InvalidGrammar as refusal:
            is_too_hard = isinstance(refusal, GrammarTooExpensive) and not is_hard and self._compile_grammar is None
            if not is_too_hard:
                outcome = type(refusal)(str(refusal))  # a new one: the traceback of `refusal` keeps objects alive
        finally:
            with self._lock:
                self._jobs.pop(grammar, None)
                if outcome is not None:
                    self._store(grammar, outcome)
                if is_too_hard:
                    self._known_hard[grammar] = None
                    if len(self._known_hard) > MAX_KNOWN_HARD:
                        self._known_hard.popitem(last=False)
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
        while (
            len(self._cache) > MAX_CACHED
            or self._num_cached_bytes > MAX_CACHED_BYTES
            or self._cached_memory() > MAX_CACHED_MEMORY
        ):
            self._evict(next(iter(self._cache)))

    def _cached_memory(self) -> int:
        return sum(outcome.num_bytes for outcome in self._cache.values() if isinstance(outcome, CompiledGrammar))

    def _evict(self, grammar: Grammar) -> None:
        del self._cache[grammar]
        self._expiries.pop(grammar, None)
        self._num_cached_bytes -= _num_bytes(grammar)


def _done(job: _Job) -> asyncio.Future[Outcome | None]:
    """A future that is done with the job; asyncio does not log its error, which `_outcome_of` raises."""
    done = asyncio.wrap_future(job.future)
    done.add_done_callback(lambda future: future.cancelled() or future.exception())
    return done


def _outcome_of(job: _Job, grammar: Grammar, param: str) -> Outcome | None:
    if job.future.cancelled():
        raise QueueFull("other grammars are being compiled; try again later")
    if not job.future.done():
        raise QueueFull(f"{param}: {grammar.kind} is still being compiled; try again later")
    return job.future.result()


def _accept(outcome: Outcome, grammar: Grammar, param: str) -> CompiledGrammar:
    if isinstance(outcome, InvalidGrammar):
        raise InvalidParameter(param, f"{param}: {grammar.kind} cannot be used: {outcome}")
    if outcome.num_bytes >= LARGE_BYTES:
        start_freeing()
    return outcome


def _num_bytes(grammar: Grammar) -> int:
    return len(grammar.source.encode("utf-8", "surrogatepass"))
