"""Grammars compiled beside the event loop: each once, within a time limit, the latest kept."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TypeAlias

from sampling.host.params import InvalidParameter
from server.grammar.compiled_grammar import CompiledGrammar
from server.grammar.deep_stack_threads import STACK_BYTES, DeepStackThreads
from server.grammar.limits import DEFAULT_MAX_BYTES, DEFAULT_TIMEOUT, InvalidGrammar
from server.grammar.trial import TrialCompiler, start_in_background
from server.grammar.vocabulary import GrammarVocabulary, HasVocabulary
from server.wire.structured_outputs import Grammar

MAX_KEPT = 128
MAX_KEPT_BYTES = 1 << 20  # of sources; a compiled grammar has been seen to take 70 times its source
NUM_THREADS = 2

Compile: TypeAlias = Callable[[Grammar, GrammarVocabulary], CompiledGrammar]
Outcome: TypeAlias = CompiledGrammar | InvalidGrammar  # a refusal is kept too: it may have been as much work


@dataclass(slots=True)
class _Job:
    future: Future[Outcome]
    num_waiting: int = 0


class GrammarCompiler:
    """Compiles the grammars of one model's requests. Its methods may be called in any thread."""

    def __init__(
        self,
        tokenizer: HasVocabulary,
        vocab_size: int,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        max_bytes: int = DEFAULT_MAX_BYTES,
        vocabulary: GrammarVocabulary | None = None,
        compile_grammar: Compile | None = None,
    ) -> None:
        """
        Args:
            timeout: seconds a request waits for its grammar at most.
            max_bytes: of a grammar's source, in UTF-8.
            vocabulary: of this tokenizer, for a process that is made ready at once; None: both wait for the
                first grammar, and all threads stand still while the vocabulary is made.
            compile_grammar: how it is done; None: after a trial in another process.
        """
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._timeout = timeout
        self._max_bytes = max_bytes
        self._vocabulary = vocabulary
        self._vocabulary_lock = threading.Lock()
        trials = TrialCompiler(tokenizer, vocab_size, timeout)
        self._compile_grammar: Compile = compile_grammar or trials
        self._threads: DeepStackThreads[Outcome] = DeepStackThreads(NUM_THREADS, STACK_BYTES, "grammar")
        self._lock = threading.Lock()  # of what follows
        self._jobs: dict[Grammar, _Job] = {}
        self._kept: OrderedDict[Grammar, Outcome] = OrderedDict()  # the least recently used first
        self._num_kept_bytes = 0
        if compile_grammar is None and vocabulary is not None:
            start_in_background(trials)

    async def compile(self, grammar: Grammar, param: str) -> CompiledGrammar:
        """The compiled form of `grammar`; other requests go on meanwhile.

        Args:
            param: wire name of the parameter it comes from.
        Raises:
            InvalidParameter: it is refused, or takes too long.
        """
        outcome = self._look_up(grammar, param)
        if outcome is None:
            job = self._enter(grammar)
            try:
                # Neither a timeout nor a cancelled request ends the work, which others may wait for.
                await asyncio.wait([asyncio.wrap_future(job.future)], timeout=self._timeout)
            finally:
                self._leave(grammar, job)
            outcome = self._outcome_of(job, grammar, param)
        return _accept(outcome, grammar, param)

    def compile_here(self, grammar: Grammar, param: str) -> CompiledGrammar:
        """`compile` for callers without a loop, who wait. Raises what that raises."""
        outcome = self._look_up(grammar, param)
        if outcome is None:
            job = self._enter(grammar)
            try:
                wait([job.future], timeout=self._timeout)
            finally:
                self._leave(grammar, job)
            outcome = self._outcome_of(job, grammar, param)
        return _accept(outcome, grammar, param)

    def _look_up(self, grammar: Grammar, param: str) -> Outcome | None:
        num_bytes = _num_bytes(grammar)
        if num_bytes > self._max_bytes:
            raise InvalidParameter(
                param, f"{param}: {grammar.kind} has {num_bytes} bytes; the limit of this server is {self._max_bytes}"
            )
        with self._lock:
            if grammar in self._kept:
                self._kept.move_to_end(grammar)
            return self._kept.get(grammar)

    def _enter(self, grammar: Grammar) -> _Job:
        with self._lock:
            job = self._jobs.get(grammar)
            if job is None:
                job = self._jobs[grammar] = _Job(self._threads.submit(lambda: self._work(grammar)))
            job.num_waiting += 1
            return job

    def _leave(self, grammar: Grammar, job: _Job) -> None:
        """Takes back work that has not begun and that nobody waits for any more."""
        with self._lock:
            job.num_waiting -= 1
            if job.num_waiting == 0 and self._jobs.get(grammar) is job and job.future.cancel():
                del self._jobs[grammar]

    def _work(self, grammar: Grammar) -> Outcome:
        """In a thread of its own. A result that comes too late serves the next one who asks."""
        outcome: Outcome | None = None
        try:
            outcome = self._compile_grammar(grammar, self._get_vocabulary())
        except InvalidGrammar as refusal:
            outcome = InvalidGrammar(str(refusal))  # without the traceback, which keeps all that was in work
        finally:
            with self._lock:
                self._jobs.pop(grammar, None)
                if outcome is not None:
                    self._keep(grammar, outcome)
        return outcome

    def _get_vocabulary(self) -> GrammarVocabulary:
        with self._vocabulary_lock:
            if self._vocabulary is None:
                self._vocabulary = GrammarVocabulary(self._tokenizer, self._vocab_size)
            return self._vocabulary

    def _keep(self, grammar: Grammar, outcome: Outcome) -> None:
        if grammar not in self._kept:  # it is where somebody looked it up just before it was kept, and entered behind
            self._num_kept_bytes += _num_bytes(grammar)
        self._kept[grammar] = outcome
        while len(self._kept) > MAX_KEPT or self._num_kept_bytes > MAX_KEPT_BYTES:
            oldest, _ = self._kept.popitem(last=False)
            self._num_kept_bytes -= _num_bytes(oldest)

    def _outcome_of(self, job: _Job, grammar: Grammar, param: str) -> Outcome:
        if not job.future.done() or job.future.cancelled():
            raise InvalidParameter(
                param, f"{param}: {grammar.kind} takes longer to compile than {self._timeout:g} s, the limit"
            )
        return job.future.result()


def _accept(outcome: Outcome, grammar: Grammar, param: str) -> CompiledGrammar:
    if isinstance(outcome, InvalidGrammar):
        raise InvalidParameter(param, f"{param}: {grammar.kind} cannot be used: {outcome}")
    return outcome


def _num_bytes(grammar: Grammar) -> int:
    return len(grammar.source.encode("utf-8", "surrogatepass"))
