"""Limits of grammars: constructs whose cost llguidance does not bound are rejected before it sees them.

The own limits of llguidance ("fuel") stop most grammars that take long. They do not stop intersections of
regular expressions: thirty patterns that one string must match, or several multipleOf, can keep it busy
for hours.
"""

import json
import math
import re
from collections.abc import Mapping
from decimal import Decimal
from functools import cached_property
from typing import Any

from server.structured_output.schemas.endless_references import endless_reference
from server.structured_output.schemas.references import is_pointer, target_of

_MAX_SHOWN = 80  # characters of a reference in a message

DEFAULT_TIMEOUT = 5.0  # seconds to compile
DEFAULT_MAX_BYTES = 64 << 10
LARGEST_MAX_BYTES = 256 << 10  # the stacks of the compiling threads are large enough for this

MAX_DEPTH = 100  # levels of nesting of a schema; llguidance reads 128
MAX_INTERSECTION = 8  # weight; beyond it, llguidance may work on an intersection for very long
MAX_ALTERNATIVES = 2000  # in a Lark grammar; with more of them in one place, llguidance works long and then gives up
MAX_REPETITIONS = 1000  # in a Lark grammar; the work of its compiler grows with the cube of nested ones
MAX_GBNF_RULES = 500  # the time to convert them to Lark grows with the square of their number
MAX_EXACT = 2**53  # llguidance rounds larger numbers, and ends the process at some below -2^63

_CONSTANTS = frozenset({"const", "enum"})
_DATA = _CONSTANTS | {"default", "examples"}  # keywords whose values are not schemas
_NAMED = frozenset(
    {"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"}
)  # keywords whose values are objects of schemas

# Strings and regular expressions end at the end of the line, so the scan is linear for any text.
_LARK_PARTS = re.compile(
    r'"(?:\\.|[^"\\\n])*+"?'
    r"|(?://|\#)[^\n]*"
    r"|/(?:\\.|[^/\\\n])*+/?"
    r"|(?P<mark>%json\b|%llguidance\b|[&~<|*+?]|\{[ \t]*[\d,])"
)

# Escapes; a backslash at the end; the beginning and the end of classes, with a literal bracket as their first
# character; groups that turn the flag x on.
_REGEX_PARTS = re.compile(r"\\(?:.)|(?P<kind>\\|\[\^?\]?|\]|\(\?[A-Za-wyz]*x[A-Za-z]*(?:-[A-Za-z]*)?[:)])", re.DOTALL)


class InvalidGrammar(ValueError):
    """A grammar cannot be used; the message is the reason, as the end of a sentence."""


class GrammarTooExpensive(InvalidGrammar):
    """A grammar took too much processor time or memory. Both depend a little on the moment, so it may pass later."""


def check_schema(schema: Any) -> None:
    """Rejects a JSON schema that is nested too deeply, has too large numbers, intersects too much or never ends."""
    _check_depth(schema)
    _check_numbers(schema)
    _check_patterns(schema)
    try:
        weight, endless = _Weights(schema).of(schema), endless_reference(schema)
    except RecursionError as error:
        raise InvalidGrammar("its references form too long a chain") from error
    if weight > MAX_INTERSECTION:
        raise InvalidGrammar(
            f"allOf and $ref make one value meet patterns, formats and multipleOf of weight {weight:.1f}; "
            f"the limit is {MAX_INTERSECTION} (a pattern weighs 1, a multipleOf twice its number of digits)"
        )
    if endless is not None:
        raise InvalidGrammar(
            f"nothing matches it: its reference {json.dumps(endless[:_MAX_SHOWN])} refers to itself without end"
        )


def check_regex(text: str) -> None:
    """Rejects a regular expression that ends within an escape, or ignores whitespace: llguidance misreads both."""
    depth = 0  # of character classes, which Rust's syntax nests
    for part in _REGEX_PARTS.finditer(text):
        match part["kind"]:
            case "\\":
                raise InvalidGrammar("it ends in a backslash that escapes nothing")
            case "]":
                depth = max(0, depth - 1)
            case str(kind) if kind.startswith("["):
                depth += 1
            case str() if depth == 0:
                raise InvalidGrammar("the flag x, which leaves whitespace and comments out, is not supported")


def check_gbnf(text: str) -> None:
    """Rejects a GBNF grammar with too many rules."""
    num_rules = text.count("::=")
    if num_rules > MAX_GBNF_RULES:
        raise InvalidGrammar(f"it has {num_rules} times ::=; the limit is {MAX_GBNF_RULES}, and Lark has none")


def check_lark(text: str) -> None:
    """Rejects a Lark grammar that llguidance might work on for very long, or that leaves the language of texts.

    Such a grammar names control tokens, sets options of llguidance, has too many alternatives, repetitions or
    intersections, or contains a JSON schema that is rejected.
    """
    num_intersections = num_alternatives = num_repetitions = 0
    for part in _LARK_PARTS.finditer(text):
        match part["mark"]:
            case "%json":
                check_schema(_json_at(text, part.end()))
            case "%llguidance":
                raise InvalidGrammar("%llguidance is not supported")
            case "<":
                raise InvalidGrammar("tokens in angle brackets are not supported")
            case "&" | "~":
                num_intersections += 1
            case "|":
                num_alternatives += 1
            case str():
                num_repetitions += 1
    if num_alternatives > MAX_ALTERNATIVES:
        raise InvalidGrammar(f"it has {num_alternatives} times |; the limit is {MAX_ALTERNATIVES}")
    if num_repetitions > MAX_REPETITIONS:
        raise InvalidGrammar(f"it has {num_repetitions} times *, +, ? or {{n}}; the limit is {MAX_REPETITIONS}")
    if num_intersections > MAX_INTERSECTION:
        raise InvalidGrammar(f"it has {num_intersections} times & or ~; the limit is {MAX_INTERSECTION}")


def _json_at(text: str, start: int) -> Any:
    try:
        return json.JSONDecoder().raw_decode(text[start:].lstrip())[0]
    except ValueError as error:
        raise InvalidGrammar(f"%json is not followed by valid JSON: {error}") from error
    except RecursionError as error:
        raise InvalidGrammar(_too_deep()) from error


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            part
            for parent in level
            if isinstance(parent, dict | list)
            for part in (parent.values() if isinstance(parent, dict) else parent)
        ]
        if not level:
            return
    raise InvalidGrammar(_too_deep())


def _check_numbers(schema: Any) -> None:
    """Rejects numbers that llguidance would round, in all parts, but for far bounds with exact numbers between them."""
    left = [("", schema)]  # pairs of a keyword and its value
    while left:
        keyword, value = left.pop()
        if isinstance(value, dict):
            left += [(keyword if keyword in _CONSTANTS else key, part) for key, part in value.items()]
        elif isinstance(value, list):
            left += [(keyword, part) for part in value]
        elif isinstance(value, int | float) and (
            (keyword in _CONSTANTS and abs(value) > MAX_EXACT)
            or (keyword in ("maximum", "exclusiveMaximum") and value < -MAX_EXACT)
            or (keyword in ("minimum", "exclusiveMinimum") and value > MAX_EXACT)
        ):
            raise InvalidGrammar(
                f"{keyword} has the number {value!r}; beyond 2^53 either way, not every number is told from the next"
            )


def _check_patterns(schema: Any) -> None:
    """Rejects patterns that `check_regex` rejects."""
    left = [schema]
    while left:
        node = left.pop()
        if isinstance(node, list):
            left += node
        elif isinstance(node, dict):
            named = node.get("patternProperties")
            for pattern in (node.get("pattern"), *(named if isinstance(named, dict) else ())):
                if isinstance(pattern, str):
                    try:
                        check_regex(pattern)
                    except InvalidGrammar as error:
                        raise InvalidGrammar(f"the pattern {pattern!r}: {error}") from error
            for key, value in node.items():
                if key in _NAMED and isinstance(value, dict):
                    left += value.values()
                elif key not in _DATA:
                    left.append(value)


def _too_deep() -> str:
    return f"it is nested more than {MAX_DEPTH} levels deep"


class _Weights:
    """The weight of each part of a schema: an upper bound of how much one value may have to match at once."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._known: dict[int, float] = {}  # by the id of objects, which `root` keeps alive

    def of(self, node: Any) -> float:
        if isinstance(node, list):
            return max(map(self.of, node), default=0)
        if not isinstance(node, dict):
            return 0
        if id(node) not in self._known:
            self._known[id(node)] = 0  # a recursive reference adds nothing
            self._known[id(node)] = self._weigh(node)
        return self._known[id(node)]

    def _weigh(self, node: Mapping[str, Any]) -> float:
        weight = _own_weight(node)
        all_of = node.get("allOf")
        if isinstance(all_of, list):
            weight += sum(map(self.of, all_of))
        if "$ref" in node:
            # A reference to an $id or $anchor may mean any schema, so it weighs as much as all together.
            reference = node["$ref"]
            weight += self.of(target_of(reference, self._root)) if is_pointer(reference) else self._of_all
        others: list[Any] = []
        for key, value in node.items():
            if key in _NAMED and isinstance(value, dict):
                others += value.values()
            elif key not in _DATA and key not in ("allOf", "$ref"):
                others.append(value)
        return weight + max(map(self.of, others), default=0)

    @cached_property
    def _of_all(self) -> float:
        return sum(map(_own_weight, _parts(self._root)))


def _own_weight(node: Mapping[str, Any]) -> float:
    weight = float(sum(isinstance(node.get(key), str) for key in ("pattern", "format")))
    if isinstance(node.get("patternProperties"), dict):
        weight += len(node["patternProperties"])  # a key must match one pattern and none of the others
    divisor = node.get("multipleOf")
    if isinstance(divisor, int | float) and not isinstance(divisor, bool) and math.isfinite(divisor):
        # The automaton has a state for each remainder, and the digits of factors add up to those of the product.
        exact = Decimal(repr(divisor)).normalize()
        _, digits, exponent = exact.as_tuple()
        scaled = int("".join(map(str, digits)) or "0") * 10 ** max(0, int(exponent))
        weight += 2 * (math.log10(max(1, scaled)) + max(0, -int(exponent)))
    return weight


def _parts(node: Any) -> list[dict[str, Any]]:
    """All objects in `node`, each reduced to the keywords that have a weight of their own."""
    found, level = [], [node]
    while level:
        parent = level.pop()
        if isinstance(parent, dict):
            found.append({key: parent[key] for key in ("pattern", "format", "multipleOf") if key in parent})
            level += parent.values()
        elif isinstance(parent, list):
            level += parent
    return found
