"""Grammars tried in another process: what it refuses, what kills it, and that nothing is left of it."""

from __future__ import annotations

import gc
import json
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from engine.interface.types import QueueFull
from server.protocol.structured_outputs import Grammar, GrammarKind
from server.structured_output import sandboxed_compiler
from server.structured_output.compiled_grammar import CompiledGrammar
from server.structured_output.grammar_limits import InvalidGrammar
from server.structured_output.grammar_vocabulary import GrammarVocabulary
from server.structured_output.sandboxed_compiler import SandboxedCompiler
from tests.fakes.grammar_walk import MergedBytes
from tests.patience import PATIENCE_S, PROCESS_S

ROOT = Path(__file__).parents[3]
SIMPLE = Grammar(GrammarKind.REGEX, "a+")


@pytest.fixture(scope="module")
def vocabulary() -> GrammarVocabulary:
    return GrammarVocabulary(MergedBytes(), MergedBytes.vocab_size)


def compiler(seconds: float = 5.0) -> SandboxedCompiler:
    return SandboxedCompiler(MergedBytes(), MergedBytes.vocab_size, seconds)


def children() -> set[int]:
    """Of this process, zombies included."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # the thread has ended; another one has taken its children over
            found |= {int(word) for word in (task / "children").read_text().split()}
    return found


@pytest.fixture(autouse=True)
def no_start_under_way() -> Iterator[None]:
    """Waits for processes that earlier tests have started for a grammar to come: a test that counts sees its own."""
    end_of_background_starts()
    yield
    end_of_background_starts()


def end_of_background_starts() -> None:
    for thread in threading.enumerate():
        if thread.name == sandboxed_compiler.BACKGROUND_START:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
    gc.collect()  # a compiler that nobody uses ends its processes


def eventually(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


# What a worker does instead of compiling.
STOPPED = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
SLOW = "while True: pass"
GREEDY = "bytearray(3 << 30)"
DEAD = "import os; os.abort()"


def start_that(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    code = f"""
from server.structured_output import compile_worker
def attempt(grammar, vocabulary):
    if grammar.source == "bad":
        exec({source!r})
    return None, "start: /a/", 0
compile_worker._try = attempt
compile_worker.run()
"""
    monkeypatch.setattr(sandboxed_compiler, "START", code)


BAD = Grammar(GrammarKind.REGEX, "bad")


def test_what_passes_is_compiled_here(vocabulary: GrammarVocabulary) -> None:
    assert isinstance(compiler()(SIMPLE, vocabulary), CompiledGrammar)


def test_what_is_refused_there_is_not_compiled_here(
    vocabulary: GrammarVocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CompiledGrammar, "from_lark", lambda *_, **__: pytest.fail("it was compiled"))
    with pytest.raises(InvalidGrammar, match="unclosed group"):
        compiler()(Grammar(GrammarKind.REGEX, "("), vocabulary)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries do not say what is allocated")
def test_the_memory_of_a_grammar_is_measured(vocabulary: GrammarVocabulary) -> None:
    """Also where the process uses the memory of an earlier grammar again."""
    trials = compiler()
    large = [Grammar(GrammarKind.CHOICE, json.dumps([f"{name} {n}" for n in range(900)])) for name in "ab"]
    small, *sizes = (trials(grammar, vocabulary).num_bytes for grammar in (SIMPLE, *large))
    assert 0 < small < min(sizes)
    assert max(sizes) < 1.5 * min(sizes)


def test_one_process_serves_one_grammar_after_the_other(vocabulary: GrammarVocabulary) -> None:
    before, trials = children(), compiler()
    trials(SIMPLE, vocabulary)
    first = children() - before
    trials(Grammar(GrammarKind.REGEX, "b"), vocabulary)
    assert len(first) == 1
    assert children() - before == first


@pytest.mark.parametrize(
    ("source", "refusal", "reason"),
    [
        (SLOW, InvalidGrammar, r"takes longer to compile than 0\.3 s of processor time, the limit"),
        (STOPPED, QueueFull, "too busy"),
    ],
)
def test_one_that_does_not_end_is_killed(
    vocabulary: GrammarVocabulary, monkeypatch: pytest.MonkeyPatch, source: str, refusal: type[Exception], reason: str
) -> None:
    """Only what used processor time is the grammar's fault."""
    start_that(monkeypatch, source)
    before, trials = children(), compiler(seconds=0.3)
    trials(SIMPLE, vocabulary)
    busy = children() - before
    with monkeypatch.context() as patched:
        patched.setattr(sandboxed_compiler, "WALL_TIME_FACTOR", 1.0 if source is STOPPED else 200.0)
        with pytest.raises(refusal, match=reason):
            trials(BAD, vocabulary)
    assert not busy & children()
    assert isinstance(trials(SIMPLE, vocabulary), CompiledGrammar)


def test_time_in_which_others_have_the_processor_does_not_count(
    vocabulary: GrammarVocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_that(monkeypatch, "import time; time.sleep(0.6)")
    assert isinstance(compiler(seconds=0.3)(BAD, vocabulary), CompiledGrammar)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes keep their priority")
def test_its_processes_have_the_nice_value(vocabulary: GrammarVocabulary) -> None:
    before, nice = children(), os.getpriority(os.PRIO_PROCESS, 0) + 2
    trials = SandboxedCompiler(MergedBytes(), MergedBytes.vocab_size, 5.0, nice=nice)
    trials(SIMPLE, vocabulary)
    assert [os.getpriority(os.PRIO_PROCESS, process) for process in children() - before] == [nice]


@pytest.mark.parametrize("source", [DEAD])
def test_one_that_ends_its_process_is_refused(
    vocabulary: GrammarVocabulary, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    start_that(monkeypatch, source)
    trials = compiler()
    with pytest.raises(InvalidGrammar, match="takes too much memory"):
        trials(BAD, vocabulary)
    assert isinstance(trials(SIMPLE, vocabulary), CompiledGrammar)


def test_memory_is_limited(vocabulary: GrammarVocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    start_that(monkeypatch, GREEDY)
    with pytest.raises(InvalidGrammar, match="takes too much memory"):
        compiler()(BAD, vocabulary)


def test_a_process_that_had_much_memory_is_replaced(
    vocabulary: GrammarVocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_that(monkeypatch, "b'x' * (600 << 20)")
    before, trials = children(), compiler()
    trials(SIMPLE, vocabulary)
    first = children() - before
    trials(BAD, vocabulary)
    assert not first & children()


def test_memory_of_the_server_does_not_count(vocabulary: GrammarVocabulary) -> None:
    held = bytearray(600 << 20)
    held[::4096] = b"x" * len(held[::4096])
    before, trials = children(), compiler()
    trials(SIMPLE, vocabulary)
    first = children() - before
    trials(Grammar(GrammarKind.REGEX, "b"), vocabulary)
    assert len(first) == 1
    assert children() - before == first


def test_modules_of_the_search_path_are_found_and_those_of_the_working_folder_are_not(
    vocabulary: GrammarVocabulary, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    named, working = tmp_path / "named", tmp_path / "working"
    right = "from server.structured_output.compile_worker import run"
    for folder, text in ((named, right), (working, "raise OSError")):
        folder.mkdir()
        (folder / "only_here.py").write_text(text)
    monkeypatch.chdir(working)
    monkeypatch.setattr(sys, "path", ["", *sys.path, str(named)])
    monkeypatch.setattr(sandboxed_compiler, "START", "from only_here import run; run()")
    assert isinstance(compiler()(SIMPLE, vocabulary), CompiledGrammar)


def test_nothing_is_left_when_it_goes(vocabulary: GrammarVocabulary) -> None:
    before, trials = children(), compiler()
    trials(SIMPLE, vocabulary)
    assert children() != before
    del trials
    gc.collect()
    assert children() <= before


@pytest.mark.parametrize("how", ["", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"])
def test_nothing_is_left_when_the_server_goes(how: str) -> None:
    code = f"""
import sys
from pathlib import Path
from tests.server.structured_output.test_sandboxed_compiler import SIMPLE, children, compiler
from tests.fakes.grammar_walk import MergedBytes
from server.structured_output.grammar_vocabulary import GrammarVocabulary
trials = compiler()
trials(SIMPLE, GrammarVocabulary(MergedBytes(), MergedBytes.vocab_size))
print(*children(), flush=True)
{how}
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, check=False, timeout=PROCESS_S
    )
    processes = [int(word) for word in done.stdout.split()]
    assert len(processes) == 1
    eventually(lambda: not Path(f"/proc/{processes[0]}").exists() or "Z" in status_of(processes[0]))


def status_of(process: int) -> str:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_the_process_brings_no_jax() -> None:
    code = (
        "import sys, server.structured_output.compile_worker; "
        "sys.exit('jax' in sys.modules or 'aiohttp' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, timeout=PROCESS_S).returncode == 0


def test_a_closed_compiler_leaves_no_process(vocabulary: GrammarVocabulary) -> None:
    before = children()
    trials = compiler()
    trials(SIMPLE, vocabulary)
    assert children() - before
    trials.close()
    assert children() - before == set()
    trials(SIMPLE, vocabulary)  # a later grammar starts a process again
    trials.close()


def test_idle_processes_end_and_start_again_when_they_are_needed(
    vocabulary: GrammarVocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandboxed_compiler, "IDLE_SECONDS", 0.05)
    before, descriptors, threads = children(), os.listdir("/proc/self/fd"), threading.active_count()
    trials = compiler()
    trials(SIMPLE, vocabulary)
    eventually(lambda: children() <= before and threading.active_count() <= threads)
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= len(descriptors))
    assert isinstance(trials(SIMPLE, vocabulary), CompiledGrammar)
    eventually(lambda: children() <= before)


def test_a_grammar_may_hold_any_character(vocabulary: GrammarVocabulary) -> None:
    trials = compiler()
    trials(Grammar(GrammarKind.CHOICE, '["\u007f", "é\U0001f30a", "\\u0000"]'), vocabulary)
    with pytest.raises(InvalidGrammar):
        trials(Grammar(GrammarKind.REGEX, "\ud800"), vocabulary)
    trials.close()


def test_a_process_that_comes_back_after_the_close_is_ended(
    vocabulary: GrammarVocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = children()
    trials = compiler()
    trials.start()
    ask = sandboxed_compiler._Worker.ask

    def closing(process: sandboxed_compiler._Worker, grammar: Grammar, *seconds: float) -> object:
        trials.close()
        return ask(process, grammar, *seconds)

    monkeypatch.setattr(sandboxed_compiler._Worker, "ask", closing)
    trials(SIMPLE, vocabulary)
    assert children() - before == set()


def test_a_start_for_a_grammar_to_come_ends_with_the_close(
    vocabulary: GrammarVocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, trials = children(), compiler()
    started, closed = threading.Event(), threading.Event()
    take = SandboxedCompiler._take

    def late(compiler: SandboxedCompiler) -> sandboxed_compiler._Worker:
        process = take(compiler)
        started.set()
        assert closed.wait(PATIENCE_S)
        return process

    monkeypatch.setattr(SandboxedCompiler, "_take", late)
    trials.start_in_background()
    assert started.wait(PATIENCE_S)
    trials.close()
    closed.set()
    end_of_background_starts()
    assert children() - before == set()


def test_a_process_that_cannot_be_started_is_a_matter_of_time(
    vocabulary: GrammarVocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*arguments: object, **options: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(subprocess, "Popen", none_left)
    with pytest.raises(QueueFull, match="try again later: Too many open files"):
        compiler()(SIMPLE, vocabulary)
