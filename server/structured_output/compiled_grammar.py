"""Compiles the source of a grammar with llguidance."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from time import thread_time
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import orjson

from sampling.host.grammar import GrammarError
from server.protocol.structured_outputs import Grammar, GrammarKind
from server.structured_output.grammar_limits import InvalidGrammar, check_gbnf, check_lark, check_regex, check_schema
from server.structured_output.grammar_matcher import GrammarMatcher, first_reason
from server.structured_output.grammar_vocabulary import GrammarVocabulary
from server.structured_output.output_grammar import MAX_PREFIX_SECONDS
from server.structured_output.schemas.closed_objects import close_objects
from server.structured_output.schemas.keyword_rewriting import with_known_keywords
from server.structured_output.schemas.schema_errors import located
from server.structured_output.schemas.type_names import with_known_types
from server.text.tokenization.native_errors import is_panic

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits

# The whitespace between two parts of a JSON text: one space, or a newline and an indentation. It is limited,
# because a small model that may write endless whitespace does so until its tokens are spent.
WHITESPACE = r"( |\r?\n( {0,24}|\t{0,6}))"
JSON_OPTIONS: Mapping[str, object] = {
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_flexible": True,
    "whitespace_pattern": WHITESPACE,
    "coerce_one_of": False,  # to treat oneOf as anyOf would accept too much
    "lenient": False,  # unknown formats and unimplemented keywords are refused
}

# Without this option, llguidance would tokenise text that has only one continuation, and allow only that
# tokenisation. Names of control tokens in such text would become those tokens.
_NO_FORCING = '\n%llguidance {"no_forcing":true}\n'

_NUM_PROBES = 8  # tokens; a grammar that is too wide for the limits fails within so many

_LOG = logging.getLogger(__name__)
LARGE_BYTES = 1 << 20  # llguidance takes about a millisecond to free so much
_NO_TOKEN = (1 << 32) - 1
_unused: SimpleQueue[LLMatcher] = SimpleQueue()  # of large grammars, to be freed; `put` may be called by a `__del__`
_freeing = threading.Lock()  # held while there is the thread that frees them


class CompiledGrammar:
    """A grammar in its initial state, which makes one matcher for each output; any thread may call it."""

    def __init__(
        self, start: LLMatcher, vocabulary: GrammarVocabulary, *, limits_digits: bool, num_bytes: int = 0
    ) -> None:
        self.num_bytes = num_bytes  # of memory that it takes, where that has been measured
        self._start = start
        self._vocabulary = vocabulary
        self._limits_digits = limits_digits

    @classmethod
    def compile(cls, grammar: Grammar, vocabulary: GrammarVocabulary) -> CompiledGrammar:
        """Compiles a grammar. This may take seconds and needs a `LargeStackThreads`.

        Raises InvalidGrammar if the grammar is wrong, not supported or too complex, or nothing matches it.
        """
        try:
            return cls.from_lark(to_lark(grammar), vocabulary, limits_digits=has_bounded_digits(grammar))
        except InvalidGrammar as error:
            raise with_place(grammar, error, vocabulary) from error

    @classmethod
    def from_lark(cls, lark: str, vocabulary: GrammarVocabulary, *, limits_digits: bool = False) -> CompiledGrammar:
        """As `compile`, of what `to_lark` returns; it takes its time without the interpreter lock."""
        from llguidance import LLMatcher

        with _panics_refused():
            start = LLMatcher(vocabulary.tokens, lark + _NO_FORCING, log_level=0, limits=_limits())
            if start.is_error():
                raise InvalidGrammar(first_reason(start.get_error()))
            compiled = cls(start, vocabulary, limits_digits=limits_digits)
            compiled._probe()
        return compiled

    def __del__(self) -> None:
        # All matchers of a grammar share its memory, and each keeps this object, so that nothing is freed before.
        if self.num_bytes >= LARGE_BYTES and _freeing.locked():
            _unused.put(self._start)

    @property
    def ends_output(self) -> bool:
        return True

    def matcher(self) -> GrammarMatcher:
        digits = self._vocabulary.digits if self._limits_digits else None
        return GrammarMatcher(self, self._vocabulary.end_token_ids, digits)

    def deep_copy(self) -> LLMatcher:
        """A matcher of llguidance in the initial state."""
        return self._start.deep_copy()

    def after(self, token_ids: Sequence[int]) -> CompiledGrammar:
        """As `OutputGrammar.after`, without the interpreter lock."""
        walker = self._start.deep_copy()
        began = thread_time()
        for token_id in token_ids:
            if token_id in self._vocabulary.end_token_ids:
                raise GrammarError(f"token {token_id} among them ends an answer")
            if not _consume(walker, token_id):
                raise GrammarError(f"token {token_id} is not allowed there: {first_reason(walker.get_error())}")
            if thread_time() - began > MAX_PREFIX_SECONDS:
                raise GrammarError(f"to read them takes longer than {MAX_PREFIX_SECONDS:g} s, the limit")
        return CompiledGrammar(walker, self._vocabulary, limits_digits=self._limits_digits, num_bytes=self.num_bytes)

    def _probe(self) -> None:
        """Matches a few tokens, so that a grammar that fails at its beginning is rejected before any request runs.

        Raises InvalidGrammar if nothing matches the grammar, or it is too complex.
        """
        words = np.empty(self._vocabulary.num_words, np.uint32)
        walker = self._start
        for step in range(_NUM_PROBES):
            walker.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
            if walker.is_error():
                reason = first_reason(walker.get_error())
                raise InvalidGrammar("nothing matches it" if reason.startswith("NoExtension") else reason)
            allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
            texts = [int(token_id) for token_id in allowed[:64] if int(token_id) not in self._vocabulary.end_token_ids]
            if not texts:
                return
            if step == 0:
                walker = walker.deep_copy()
            if not walker.consume_token(texts[0]):
                raise InvalidGrammar(first_reason(walker.get_error()))


def start_freeing() -> None:
    """Starts the thread that frees large grammars from now on, unless it runs.

    llguidance frees a matcher with the interpreter lock, for most of a second where the grammar is hard. One call frees
    it without the lock: `consume_token_par`, of a matcher that it fails, beside another one. A thread inherits the
    priority of the one that starts it. This one must not have a low one, because it would keep all others waiting where
    it holds the lock.
    """
    if _freeing.acquire(blocking=False):
        try:
            threading.Thread(target=_free, name="eagre-freed-grammars", daemon=True).start()
        except RuntimeError:  # the machine starts no thread; grammars are freed where they are left
            _freeing.release()


def _free() -> None:
    try:
        _free_unused()
    except BaseException:  # noqa: BLE001 - a panic of the library, or it starts no thread; the next call tries again
        _LOG.exception("large grammars are freed where they are left, until the next one is compiled")
    finally:
        _freeing.release()


def _free_unused() -> NoReturn:
    from llguidance import LLExecutor

    executor = LLExecutor(num_threads=1)
    beside = None
    while True:
        matcher = _unused.get()
        beside = beside or matcher.deep_copy()  # the call fails it too; what has failed once is small
        with suppress(RuntimeError):  # somebody else has it and uses it at this moment
            executor.consume_token_par([(matcher, _NO_TOKEN), (beside, _NO_TOKEN)])
        del matcher


@contextmanager
def _panics_refused() -> Iterator[None]:
    """Raises InvalidGrammar where the library panics."""
    try:
        yield
    except BaseException as error:
        if not is_panic(error):
            raise
        raise InvalidGrammar(f"llguidance fails on it: {first_reason(str(error))}") from error


def has_bounded_digits(grammar: Grammar) -> bool:
    """Whether numbers of the grammar have at most MAX_DIGITS digits in a row: JSON, which must be able to end."""
    return grammar.kind in (GrammarKind.JSON_SCHEMA, GrammarKind.CALLS)


def with_place(grammar: Grammar, error: InvalidGrammar, vocabulary: GrammarVocabulary) -> InvalidGrammar:
    """The error with the place in the schema that is the reason."""

    def refusal_of(schema: dict[str, Any]) -> str | None:
        alone = Grammar(GrammarKind.JSON_SCHEMA, orjson.dumps(schema).decode(), grammar.closes_objects)
        try:
            CompiledGrammar.from_lark(to_lark(alone), vocabulary)
        except InvalidGrammar as refusal:
            return str(refusal)
        return None

    try:
        source = orjson.loads(grammar.source) if grammar.kind in (GrammarKind.JSON_SCHEMA, GrammarKind.CALLS) else None
    except orjson.JSONDecodeError:
        return error
    for schema in source if isinstance(source, list) else [source]:
        if isinstance(schema, dict):
            found = located(schema, refusal_of)
            if found is not None:
                return InvalidGrammar(found)
    return error


def _consume(walker: LLMatcher, token_id: int) -> bool:
    try:
        return bool(walker.consume_token(token_id))
    except BaseException as error:
        if is_panic(error):
            raise GrammarError(f"llguidance fails on them: {first_reason(str(error))}") from error
        raise


def _limits() -> LLParserLimits:
    """The limits of llguidance for one grammar, in its own units of work.

    They are far below its defaults, because one request must not take too much of the engine thread's
    time or of the process's memory.
    """
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_items_in_row=2_000,
        initial_lexer_fuel=200_000,
        step_lexer_fuel=50_000,
        step_max_items=50_000,
        max_lexer_states=20_000,
        max_grammar_size=16_000,
        verbose_errors=False,  # otherwise each message contains the whole grammar
    )


def to_lark(grammar: Grammar) -> str:
    """Checks a grammar and translates it into llguidance's variant of Lark.

    Raises InvalidGrammar if the grammar exceeds a limit or is not valid in its language.
    """
    with _panics_refused():
        return _translate(grammar)


def _translate(grammar: Grammar) -> str:
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            return "start: %json " + _with_options(grammar.source, closes=grammar.closes_objects)
        case GrammarKind.REGEX:
            from llguidance import regex_to_lark

            check_regex(grammar.source)
            return f"start: /{regex_to_lark(grammar.source, '')}/"
        case GrammarKind.CHOICE:
            choices = dict.fromkeys(orjson.loads(grammar.source))
            # The one character that JSON writes as it is and llguidance wants escaped.
            return "start: " + " | ".join(
                orjson.dumps(choice).decode().replace("\x7f", "\\u007f") for choice in choices
            )
        case GrammarKind.LARK:
            lark = grammar.source if _is_lark(grammar.source) else _from_gbnf(grammar.source)
            check_lark(lark)
            return lark
        case GrammarKind.CALLS:
            parts = orjson.loads(grammar.source)
            return "".join(
                part if isinstance(part, str) else _with_options(orjson.dumps(part), closes=grammar.closes_objects)
                for part in parts
            )


def _with_options(source: str | bytes, *, closes: bool) -> str:
    try:
        schema = orjson.loads(source)
    except orjson.JSONDecodeError as error:
        raise InvalidGrammar(f"it is not valid JSON: {error}") from error
    if not isinstance(schema, dict | bool):
        raise InvalidGrammar("it must be an object or a boolean")
    check_schema(schema)
    if isinstance(schema, dict) and "x-guidance" in schema:
        raise InvalidGrammar("x-guidance is not supported: how JSON is written is the server's affair")
    schema = with_known_types(schema)
    if closes:
        schema = close_objects(schema)
    known = with_known_keywords(schema)
    if known != schema:
        check_schema(known)
        schema = known
    if isinstance(schema, dict) and "$id" in schema and not _has_absolute_references(schema):
        schema = {name: part for name, part in schema.items() if name != "$id"}  # a mere name of the schema
    whole: dict[str, Any] = schema if isinstance(schema, dict) else {"anyOf": [schema]}
    return orjson.dumps({**whole, "x-guidance": JSON_OPTIONS}).decode()


def _has_absolute_references(node: Any) -> bool:
    """Whether a part of a schema refers to another one by more than its place, so that `$id` matters."""
    if isinstance(node, list):
        return any(map(_has_absolute_references, node))
    if not isinstance(node, dict):
        return False
    reference = node.get("$ref", "#")
    if isinstance(reference, str) and not reference.startswith("#"):
        return True
    return any(map(_has_absolute_references, node.values()))


def _is_lark(text: str) -> bool:
    """Whether a text is Lark rather than GBNF: only GBNF defines rules with `::=`."""
    return "::=" not in text or re.search(r"^[ \t]*start[ \t]*:(?!:=)", text, re.MULTILINE) is not None


def _from_gbnf(text: str) -> str:
    from llguidance.gbnf_to_lark import gbnf_to_lark

    check_gbnf(text)
    try:
        lark: str = gbnf_to_lark(text)
    except RecursionError as error:
        raise InvalidGrammar("it is nested too deeply") from error
    except Exception as error:  # the converter raises many types for texts that it does not expect
        raise InvalidGrammar(f"it is not valid GBNF: {first_reason(str(error))}") from error
    return lark.removeprefix("%llguidance {}\n")
