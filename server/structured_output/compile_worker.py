"""The worker process in which grammars are compiled first: it may be killed, and its memory is limited.

It is started with the number of a socket, over which come the vocabulary and then grammar after
grammar. It compiles each and answers whether that failed, and why.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from server.protocol.structured_outputs import Grammar, GrammarKind
from server.structured_output.compiled_grammar import CompiledGrammar
from server.structured_output.grammar_limits import InvalidGrammar
from server.structured_output.grammar_vocabulary import GrammarVocabulary
from server.structured_output.large_stack_threads import STACK_BYTES, LargeStackThreads

MAX_BYTES = 2 << 30  # of address space; beyond it an allocation ends the process
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes, of getrusage
TIME_SPENT_SIGNAL = signal.SIGPROF  # ends the process when a compilation has used its processor time
# How much longer than its limit of processor time a compilation may last: on a busy machine, it gets only a small part
# of a core. A request that has waited so long may be repeated; its grammar may be all right.
WALL_TIME_FACTOR = 20.0
MAX_WORKER_BYTES = 512 << 20  # of memory; a process that has had so much is replaced by a fresh one


class WorkerVocabulary(NamedTuple):
    """The message with what a `GrammarVocabulary` is made of."""

    token_bytes: Sequence[bytes]
    eos_token_ids: tuple[int, ...]
    vocab_size: int
    seconds: float  # of processor time that a compilation may take; then the process ends


class CompileVerdict(NamedTuple):
    refusal: str | None  # None: it can be compiled
    is_last: bool  # whether the process ends now


def encode_vocabulary(message: WorkerVocabulary) -> bytes:
    """The vocabulary as JSON; the bytes of a token are the characters of the same numbers."""
    return json.dumps((tuple(token.decode("latin-1") for token in message.token_bytes), *message[1:])).encode()


def _decode_vocabulary(message: bytes) -> WorkerVocabulary:
    tokens, eos_token_ids, vocab_size, seconds = json.loads(message)
    return WorkerVocabulary(
        tuple(token.encode("latin-1") for token in tokens), tuple(eos_token_ids), vocab_size, seconds
    )


def run() -> None:
    """The main function: serves the socket whose number is the first argument, until that is closed."""
    with suppress(EOFError, OSError):  # OSError: the server ended in the middle of a message
        _run(Connection(int(sys.argv[1])))


def _run(socket: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _limit_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C in a terminal is for the server, whose end closes the socket
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(TIME_SPENT_SIGNAL, signal.SIG_DFL)
    message = _decode_vocabulary(socket.recv_bytes())
    vocabulary = GrammarVocabulary(message, message.vocab_size)
    threads: LargeStackThreads[str | None] = LargeStackThreads(1, STACK_BYTES, "grammar")
    socket.send_bytes(b"ready")
    while True:
        kind, source = json.loads(socket.recv_bytes())
        grammar = Grammar(GrammarKind(kind), source)
        signal.setitimer(signal.ITIMER_PROF, message.seconds)
        # Even if the server does not kill it, the process ends after this time.
        signal.setitimer(signal.ITIMER_REAL, message.seconds * WALL_TIME_FACTOR + 1.0)
        refusal = threads.submit(lambda wish=grammar: _refusal_of(wish, vocabulary)).result()  # type: ignore[misc]
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        is_last = _most_memory() > MAX_WORKER_BYTES
        socket.send_bytes(json.dumps(CompileVerdict(refusal, is_last)).encode())
        if is_last:
            return


def _limit_memory() -> None:
    """Limits the address space to MAX_BYTES, or to the system's own limit where that is lower."""
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    limit = MAX_BYTES if most == resource.RLIM_INFINITY else min(MAX_BYTES, most)
    with suppress(ValueError, OSError):  # macOS refuses this limit
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _most_memory() -> int:
    with suppress(OSError):
        # Linux counts in `ru_maxrss` what the server had when it started this process: more than the limit, always.
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT


def _refusal_of(grammar: Grammar, vocabulary: GrammarVocabulary) -> str | None:
    try:
        CompiledGrammar.compile(grammar, vocabulary)
    except InvalidGrammar as error:
        return str(error)
    return None
