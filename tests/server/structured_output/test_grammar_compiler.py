from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from engine.interface.types import QueueFull
from sampling.host.params import InvalidParameter
from server.admission.keyring import work_for
from server.protocol.structured_outputs import Grammar, GrammarKind
from server.structured_output import grammar_compiler
from server.structured_output.compiled_grammar import CompiledGrammar
from server.structured_output.grammar_compiler import GrammarCompiler
from server.structured_output.grammar_limits import GrammarTooExpensive, InvalidGrammar
from server.structured_output.grammar_vocabulary import GrammarVocabulary, HasVocabulary
from tests.fakes.grammar_walk import MergedBytes
from tests.patience import PATIENCE_S
from tests.server.conftest import eventually

IMPATIENT = 0.025  # processor seconds; a grammar is waited for 20 times as long, in which its thread must begin


def regex(pattern: str) -> Grammar:
    return Grammar(GrammarKind.REGEX, pattern)


def lark(text: str) -> Grammar:
    return Grammar(GrammarKind.LARK, text)


def schema(value: object) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value))


class Gated:
    """Compiles when the gate is open, and counts its calls."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.calls: Counter[Grammar] = Counter()

    def __call__(self, grammar: Grammar, vocabulary: GrammarVocabulary) -> CompiledGrammar:
        self.calls[grammar] += 1
        assert self.gate.wait(PATIENCE_S)
        return CompiledGrammar.compile(grammar, vocabulary)


@pytest.fixture
def gated() -> Gated:
    return Gated()


def compiler(**options: object) -> GrammarCompiler:
    return GrammarCompiler(MergedBytes(), MergedBytes.vocab_size, **options)


async def test_a_grammar_is_compiled_once_and_kept() -> None:
    grammars = compiler()
    first = await grammars.compile(regex("a+"), "structured_outputs")
    assert await grammars.compile(regex("a+"), "response_format") is first
    assert grammars.compile_here(regex("a+"), "structured_outputs") is first
    assert await grammars.compile(regex("b+"), "structured_outputs") is not first


async def test_a_grammar_requested_twice_at_once_is_compiled_once(gated: Gated) -> None:
    grammars = compiler(compile_grammar=gated)
    tasks = [asyncio.create_task(grammars.compile(regex("a"), "structured_outputs")) for _ in range(5)]
    await asyncio.sleep(0.02)
    gated.gate.set()
    results = await asyncio.gather(*tasks)
    assert len(set(map(id, results))) == 1
    assert gated.calls == {regex("a"): 1}


async def test_a_grammar_is_waited_for_only_so_long_but_kept_for_the_next_request(gated: Gated) -> None:
    """The wait tells nothing of the grammar, because the machine may be busy: the client shall come again."""
    grammars = compiler(compile_grammar=gated)
    patient = asyncio.create_task(grammars.compile(regex("a"), "structured_outputs"))
    await eventually(lambda: bool(gated.calls))
    grammars._timeout = IMPATIENT
    with pytest.raises(QueueFull, match="structured_outputs: the regular expression is still being compiled"):
        await grammars.compile(regex("a"), "structured_outputs")
    with pytest.raises(QueueFull, match="still being compiled"):
        grammars.compile_here(regex("a"), "structured_outputs")
    gated.gate.set()
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await grammars.compile(regex("a"), "structured_outputs")
                break
            except QueueFull:
                await asyncio.sleep(0.005)
    assert isinstance(await patient, CompiledGrammar)
    assert gated.calls == {regex("a"): 1}


async def test_one_that_had_no_thread_is_told_to_come_again(gated: Gated) -> None:
    grammars = compiler(timeout=IMPATIENT, compile_grammar=gated)
    busy = [asyncio.create_task(grammars.compile(regex(letter), "structured_outputs")) for letter in "ab"]
    await asyncio.sleep(0)
    with pytest.raises(QueueFull, match="other grammars are being compiled"):
        await grammars.compile(regex("c"), "structured_outputs")
    gated.gate.set()
    await asyncio.gather(*busy, return_exceptions=True)
    assert regex("c") not in gated.calls


async def test_other_grammars_do_not_wait(gated: Gated) -> None:
    """A slow grammar occupies only one thread, and a kept grammar needs none."""
    grammars = compiler(
        compile_grammar=lambda grammar, vocabulary: (
            gated(grammar, vocabulary)
            if grammar.source.startswith("slow")
            else CompiledGrammar.compile(grammar, vocabulary)
        )
    )
    kept = await grammars.compile(regex("kept"), "structured_outputs")
    slow = asyncio.create_task(grammars.compile(regex("slow1"), "structured_outputs"))
    await asyncio.sleep(0)
    await grammars.compile(regex("fast"), "structured_outputs")
    other = asyncio.create_task(grammars.compile(regex("slow2"), "structured_outputs"))
    await asyncio.sleep(0)
    assert await grammars.compile(regex("kept"), "structured_outputs") is kept
    assert not slow.done()
    gated.gate.set()
    await asyncio.gather(slow, other)


def hard(name: str) -> Grammar:
    return lark(f'start: /{name}/ | %json {{"type": "integer", "multipleOf": 7}}')


async def test_a_simple_grammar_overtakes_hard_ones(gated: Gated) -> None:
    """Also where no tenant is told from the others."""
    grammars = compiler(
        compile_grammar=lambda grammar, vocabulary: (
            gated(grammar, vocabulary)
            if grammar.kind is GrammarKind.LARK
            else CompiledGrammar.compile(grammar, vocabulary)
        )
    )
    waiting = [asyncio.create_task(grammars.compile(hard(f"h{index}"), "structured_outputs")) for index in range(20)]
    await asyncio.sleep(0)
    choice = Grammar(GrammarKind.CHOICE, '["yes", "no"]')
    async with asyncio.timeout(PATIENCE_S):
        for simple in (
            choice,
            regex("a+"),
            schema({"type": "object"}),
            schema({"$ref": "#/$defs/a", "$defs": {"a": {}}}),
        ):
            await grammars.compile(simple, "structured_outputs")
    assert not any(task.done() for task in waiting)
    gated.gate.set()
    await asyncio.gather(*waiting)


@pytest.mark.parametrize("make", [hard, regex])
async def test_tenants_take_turns(gated: Gated, make: Callable[[str], Grammar]) -> None:
    order: list[str] = []

    def compile_grammar(grammar: Grammar, vocabulary: GrammarVocabulary) -> CompiledGrammar:
        order.append(grammar.source)
        return gated(grammar, vocabulary)

    async def ask(tenant: str, grammar: Grammar) -> None:
        work_for(tenant)
        await grammars.compile(grammar, "structured_outputs")

    grammars = compiler(compile_grammar=compile_grammar)
    many = [make(f"a{index}") for index in range(12)]
    tasks = [asyncio.create_task(ask("many", grammar)) for grammar in many]
    await asyncio.sleep(0.01)
    # The last one is wanted by both; it is compiled when the first of them has its turn.
    mine = [make("mine"), many[-1]]
    tasks += [asyncio.create_task(ask("one", grammar)) for grammar in mine]
    await asyncio.sleep(0.01)
    gated.gate.set()
    await asyncio.gather(*tasks)
    places = [order.index(grammar.source) for grammar in mine]
    assert places[0] <= grammar_compiler.NUM_THREADS + 1
    assert places[1] <= grammar_compiler.NUM_THREADS + 3
    assert len(order) == len(set(order)) == 13


async def test_one_that_only_looks_simple_waits_with_the_hard_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried for a short time first."""
    monkeypatch.setattr(grammar_compiler, "SIMPLE_SECONDS", 0.01)
    monkeypatch.setattr(grammar_compiler, "is_simple", lambda grammar: True)
    grammars = compiler(timeout=30.0)
    remainders = [{"type": "integer", "multipleOf": 9973 - index} for index in range(6)]
    hidden = schema({"type": "array", "prefixItems": remainders})
    assert isinstance(await grammars.compile(hidden, "structured_outputs"), CompiledGrammar)
    grammars.close()


async def test_a_cancelled_request_does_not_cancel_the_grammar_of_another(gated: Gated) -> None:
    grammars = compiler(compile_grammar=gated)
    gone = asyncio.create_task(grammars.compile(regex("a"), "structured_outputs"))
    stays = asyncio.create_task(grammars.compile(regex("a"), "structured_outputs"))
    await asyncio.sleep(0.01)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    gated.gate.set()
    assert isinstance(await stays, CompiledGrammar)


async def test_work_that_nobody_waits_for_is_not_started(gated: Gated) -> None:
    grammars = compiler(compile_grammar=gated)
    running = [
        asyncio.create_task(grammars.compile(regex(f"running{index}"), "structured_outputs"))
        for index in range(grammar_compiler.NUM_THREADS)
    ]
    await asyncio.sleep(0.01)
    gone = asyncio.create_task(grammars.compile(regex("gone"), "structured_outputs"))
    waits = asyncio.create_task(grammars.compile(regex("waits"), "structured_outputs"))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait([gone])
    gated.gate.set()
    await asyncio.gather(*running, waits)
    assert regex("gone") not in gated.calls
    assert isinstance(await grammars.compile(regex("gone"), "structured_outputs"), CompiledGrammar)


async def test_a_refusal_is_kept_too_and_names_the_parameter() -> None:
    calls = 0

    def refuse(grammar: Grammar, vocabulary: GrammarVocabulary) -> CompiledGrammar:
        nonlocal calls
        calls += 1
        raise InvalidGrammar("it is ugly")

    grammars = compiler(compile_grammar=refuse)
    for param in ("structured_outputs", "response_format"):
        with pytest.raises(
            InvalidParameter, match=f"{param}: the regular expression cannot be used: it is ugly"
        ) as error:
            await grammars.compile(regex("a"), param)
        assert error.value.param == param
    assert calls == 1


async def test_an_error_of_the_work_is_raised_and_not_kept() -> None:
    def fail(grammar: Grammar, vocabulary: GrammarVocabulary) -> CompiledGrammar:
        raise ZeroDivisionError

    grammars = compiler(compile_grammar=fail)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            await grammars.compile(regex("a"), "structured_outputs")


async def test_an_error_of_the_work_is_not_logged_by_asyncio_too() -> None:
    def fail(grammar: Grammar, vocabulary: GrammarVocabulary) -> CompiledGrammar:
        raise QueueFull("the machine is too busy")

    logged: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: logged.append(context))
    grammars, num_refused = compiler(compile_grammar=fail), 0
    for _ in range(3):  # a thread keeps its last job until the next
        try:
            await grammars.compile(regex("a"), "structured_outputs")
        except QueueFull:  # pytest.raises would keep the error, and its frames the future
            num_refused += 1
    assert num_refused == 3
    gc.collect()  # the log is written where a future is freed whose error nobody took
    assert not logged


async def test_a_too_large_grammar_is_refused() -> None:
    grammars = compiler(max_bytes=10)
    await grammars.compile(regex("a" * 10), "structured_outputs")
    with pytest.raises(InvalidParameter, match="the regular expression has 12 bytes; the limit of this server is 10"):
        await grammars.compile(regex("é" * 6), "structured_outputs")


async def test_the_least_recently_used_grammar_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_compiler, "MAX_CACHED", 2)
    gated = Gated()
    gated.gate.set()
    grammars = compiler(compile_grammar=gated)
    for pattern in ("a", "b", "a", "c", "a", "b"):
        await grammars.compile(regex(pattern), "structured_outputs")
    assert gated.calls == {regex("a"): 1, regex("b"): 2, regex("c"): 1}


def test_a_grammar_compiled_twice_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that looks a grammar up just before it is kept compiles it again."""
    monkeypatch.setattr(grammar_compiler, "MAX_CACHED_BYTES", 10)
    grammars = compiler()
    with monkeypatch.context() as patch:
        patch.setattr(grammars, "_look_up", lambda grammar, param: None)
        for _ in range(6):
            grammars.compile_here(regex("a{4}"), "structured_outputs")
    kept = grammars.compile_here(regex("a{4}"), "structured_outputs")
    grammars.compile_here(regex("b{4}"), "structured_outputs")
    assert grammars.compile_here(regex("a{4}"), "structured_outputs") is kept


async def test_kept_grammars_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_compiler, "MAX_CACHED_BYTES", 10)
    gated = Gated()
    gated.gate.set()
    grammars = compiler(compile_grammar=gated)
    for pattern in ("aaaa", "bbbb", "cccccccc", "cccccccc", "aaaa", "d" * 11, "d" * 11):
        await grammars.compile(regex(pattern), "structured_outputs")
    assert gated.calls == {regex("aaaa"): 2, regex("bbbb"): 1, regex("cccccccc"): 1, regex("d" * 11): 2}


async def test_kept_grammars_are_bounded_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grammar of a kilobyte may take a hundred megabytes once it is compiled."""
    monkeypatch.setattr(grammar_compiler, "MAX_CACHED_MEMORY", 10)
    calls: list[str] = []

    def compile_grammar(grammar: Grammar, vocabulary: GrammarVocabulary) -> CompiledGrammar:
        calls.append(grammar.source)
        compiled = CompiledGrammar.compile(grammar, vocabulary)
        compiled.num_bytes = {"a": 4, "b": 5, "c": 6, "d": 11}[grammar.source]
        return compiled

    grammars = compiler(compile_grammar=compile_grammar)
    for pattern in "ababcccadd":
        await grammars.compile(regex(pattern), "structured_outputs")
    assert "".join(calls) == "abcadd"


def chain_of_rules(length: int) -> str:
    rules = "\n".join(f'r{index}: "x" r{index + 1}' for index in range(length))
    return f'start: r0\n{rules}\nr{length}: "y"'


def chain_of_objects(length: int) -> dict[str, object]:
    parts = {
        f"d{index}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{index + 1}"}}, "required": ["a"]}
        for index in range(length)
    }
    return {"$defs": {**parts, f"d{length}": {"type": "integer"}}, "$ref": "#/$defs/d0"}


HOSTILE = {
    "counted repetitions": regex("(a{1000}){1000}"),
    "nested repetitions": regex("((((((a{0,10}){0,10}){0,10}){0,10}){0,10}){0,10})"),
    "many dots": regex(".*" + "".join(f"{letter}.*" for letter in "abcdefghijklmnopqrstuvwxyz" * 8)),
    "many alternatives": regex("|".join(f"w{index}[a-z]*{index}" for index in range(4000))),
    "a chain of rules": lark(chain_of_rules(3500)),
    "a chain of objects": schema(chain_of_objects(80)),
    "ambiguity": lark('start: e\ne: e e e e | e e | "a" e | "a"'),
    "intersections": lark("start: A\nA: " + " & ".join(f"/.*a{index}.{{9}}/" for index in range(9))),
    "patterns at once": schema({"allOf": [{"type": "string", "pattern": f"{i}.{{9}}"} for i in range(30)]}),
    "remainders": schema({"allOf": [{"type": "integer", "multipleOf": prime} for prime in (7, 11, 13, 17, 19, 23)]}),
    "many properties": schema({"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(2000)}}),
    "a long enum": schema({"enum": [f"value {index}" for index in range(3500)]}),
    "a long value": schema({"enum": ["x" * 60_000, "y"]}),
    "doubling references": schema(
        {
            "$defs": {
                **{f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(50)},
                "d50": {"type": "integer"},
            },
            "$ref": "#/$defs/d0",
        }
    ),
    "doubling alternatives": schema(
        {"allOf": [{"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(20)]}
    ),
    "look-arounds": schema({"type": "string", "pattern": "^" + "(?!.*a)(?=.*b.*c)" * 40 + "x(?!y{900})z$"}),
    "conditions": schema(
        {"allOf": [{"if": {"required": [f"a{i}"]}, "then": {"required": [f"b{i}"]}} for i in range(20)]}
    ),
    "conditions of conditions": schema(json.loads('{"if":' * 60 + '{"const": 1}' + ',"then":{"const":2}}' * 60)),
    "deep nesting": schema(json.loads('{"items":' * 90 + "{}" + "}" * 90)),
    "very deep nesting": Grammar(GrammarKind.JSON_SCHEMA, '{"items":' * 900 + "{}" + "}" * 900),
}


@pytest.mark.parametrize("grammar", HOSTILE.values(), ids=HOSTILE.keys())
async def test_hostile_grammars_are_compiled_or_refused_while_the_loop_turns(grammar: Grammar) -> None:
    """The bounds are generous; the loop's is of processor time of this process, so that others do not count."""
    grammars = compiler(timeout=30.0)
    await grammars.compile(regex("a"), "structured_outputs")  # builds the vocabulary
    gaps: list[float] = []

    async def watch() -> None:
        while True:
            before = time.process_time()
            await asyncio.sleep(0.001)
            gaps.append(time.process_time() - before)

    watcher = asyncio.create_task(watch())
    began = time.perf_counter()
    (outcome,) = await asyncio.gather(grammars.compile(grammar, "structured_outputs"), return_exceptions=True)
    seconds = time.perf_counter() - began
    watcher.cancel()
    assert isinstance(outcome, CompiledGrammar | InvalidParameter)
    if isinstance(outcome, InvalidParameter):
        assert "takes longer" not in str(outcome)
        assert len(str(outcome)) < 400
    assert seconds < PATIENCE_S / 2
    assert max(gaps, default=0) < 1.0


def test_a_refusal_for_want_of_time_is_forgotten_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine may have been busy."""
    asked: list[Grammar] = []

    def compile_grammar(grammar: Grammar, vocabulary: GrammarVocabulary) -> CompiledGrammar:
        asked.append(grammar)
        raise GrammarTooExpensive("it takes longer to compile than 5 s, the limit")

    compiler = GrammarCompiler(MergedBytes(), MergedBytes.vocab_size, compile_grammar=compile_grammar)
    grammar = Grammar(GrammarKind.REGEX, "a+")
    for _ in range(3):
        with pytest.raises(InvalidParameter, match="takes longer"):
            compiler.compile_here(grammar, "structured_outputs")
    assert len(asked) == 1
    now = time.monotonic()
    monkeypatch.setattr(
        "server.structured_output.grammar_compiler.time.monotonic", lambda: now + grammar_compiler.SECONDS_TOO_HARD + 1
    )
    with pytest.raises(InvalidParameter, match="takes longer"):
        compiler.compile_here(grammar, "structured_outputs")
    assert len(asked) == 2


async def test_what_was_prepared_is_not_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []

    class Counted(GrammarVocabulary):
        def __init__(self, tokenizer: HasVocabulary, vocab_size: int) -> None:
            built.append(vocab_size)
            super().__init__(tokenizer, vocab_size)

    monkeypatch.setattr("server.structured_output.grammar_compiler.GrammarVocabulary", Counted)
    grammars = compiler()
    grammars.prepare()
    grammars.prepare()
    await grammars.compile(regex("a+"), "structured_outputs")
    assert built == [MergedBytes.vocab_size]


def test_a_model_without_an_end_token_needs_no_preparation() -> None:
    class Endless(MergedBytes):
        eos_token_ids = ()

    GrammarCompiler(Endless(), MergedBytes.vocab_size).prepare()
