"""Says with other keywords which values a JSON schema does not match, where that can be said."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

from server.structured_output.schemas.pattern_writer import negated_patterns, other_texts
from server.structured_output.schemas.regular_expression import UnknownPattern

MAX_PARTS = 500  # of a negation
MAX_DEPTH = 32
MAX_EXACT = 2**53  # beyond it, not every number is told from the next
TYPES = ("null", "boolean", "string", "array", "object", "number")  # integers are numbers
# Keywords that say something about a value. Those that are not negated here are refused, others are annotations.
_ASSERTIONS = frozenset({
    "$dynamicRef", "$recursiveRef", "$ref", "additionalItems", "additionalProperties", "allOf", "anyOf", "const",
    "contains", "dependencies", "dependentRequired", "dependentSchemas", "else", "enum", "format", "if", "items",
    "maxContains", "minContains", "multipleOf", "not", "oneOf", "pattern", "patternProperties", "prefixItems",
    "properties", "propertyNames", "required", "then", "type", "unevaluatedItems", "unevaluatedProperties",
    "uniqueItems",
})  # fmt: skip
# Of each bound: the type that it is for, the opposite bound, and by how much that is moved.
_BOUNDS: Mapping[str, tuple[str, str, int]] = {
    "minimum": ("number", "exclusiveMaximum", 0),
    "maximum": ("number", "exclusiveMinimum", 0),
    "exclusiveMinimum": ("number", "maximum", 0),
    "exclusiveMaximum": ("number", "minimum", 0),
    "minLength": ("string", "maxLength", -1),
    "maxLength": ("string", "minLength", 1),
    "minItems": ("array", "maxItems", -1),
    "maxItems": ("array", "minItems", 1),
    "minProperties": ("object", "maxProperties", -1),
    "maxProperties": ("object", "minProperties", 1),
}

Resolve: TypeAlias = Callable[[str], Any]  # what a reference points to


class CannotBeSaid(ValueError):
    """No keywords that are enforced say it."""


def any_of(choices: Sequence[Any]) -> Any:
    """The schema of the values that one of some schemas matches."""
    if any(choice is True or choice == {} for choice in choices):
        return True
    kept = [choice for choice in choices if choice is not False]
    if not kept:
        return False
    return kept[0] if len(kept) == 1 else {"anyOf": kept}


class Negation:
    """Negates the schemas that a root has.

    Args:
        resolve: finds what a reference points to; raises CannotBeSaid.
    """

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve
        self._num_parts = 0

    def of(self, node: Any, types: Collection[str] = (*TYPES, "integer")) -> Any:
        """The schema of the values of some types that `node` does not match. Raises CannotBeSaid."""
        return any_of(self._choices(node, frozenset(types), 0))

    def _choices(self, node: Any, types: frozenset[str], depth: int) -> list[Any]:
        """Schemas, one of which matches where `node` does not: one for each way to fail."""
        if isinstance(node, bool):
            return [] if node else [True]
        self._num_parts += 1
        if not isinstance(node, dict) or depth > MAX_DEPTH or self._num_parts > MAX_PARTS:
            raise CannotBeSaid
        choices: list[Any] = []
        for key, value in node.items():
            choices += self._failing(key, value, types, depth)
        return choices

    def _failing(self, key: str, value: Any, types: frozenset[str], depth: int) -> list[Any]:
        match key:
            case _ if key not in _ASSERTIONS and key not in _BOUNDS:
                return []
            case "type":
                return _other_types(value, types)
            case "const":
                return _other_values([value], types)
            case "enum" if isinstance(value, list):
                return _other_values(value, types)
            case "required" if isinstance(value, list) and all(isinstance(name, str) for name in value):
                return [{"type": "object", "properties": {name: False}} for name in value]
            case "properties" if isinstance(value, dict):
                return [
                    {"type": "object", "properties": {name: failing}, "required": [name]}
                    for name, part in value.items()
                    if (failing := any_of(self._choices(part, frozenset({*TYPES, "integer"}), depth + 1))) is not False
                ]
            case "additionalProperties" | "items" if value is True or value == {}:
                return []
            case "anyOf" if isinstance(value, list):
                failing = [any_of(self._choices(part, types, depth + 1)) for part in value]
                if False in [part for part in failing if isinstance(part, bool)]:
                    return []
                return [{"allOf": failing}]
            case "allOf" if isinstance(value, list):
                return [choice for part in value for choice in self._choices(part, types, depth + 1)]
            case "$ref" if isinstance(value, str):
                return self._choices(self._resolve(value), types, depth + 1)
            case "pattern" if isinstance(value, str):
                return [_with_patterns(negated_patterns, value)]
            case _ if key in _BOUNDS and isinstance(value, int | float) and not isinstance(value, bool):
                kind, opposite, moved = _BOUNDS[key]
                if kind == "number":
                    return [{"type": "number", opposite: value}]
                if value > MAX_EXACT:
                    raise CannotBeSaid
                bound = int(value) + moved
                return [{"type": kind, opposite: bound}] if bound >= 0 else []
        raise CannotBeSaid


def _with_patterns(find: Callable[[Any], list[str]], of: Any) -> dict[str, Any]:
    """The schema of the texts that match all the patterns that `find` returns."""
    try:
        found = find(of)
    except UnknownPattern as error:
        raise CannotBeSaid from error
    if len(found) == 1:
        return {"type": "string", "pattern": found[0]}
    return {"type": "string", "allOf": [{"pattern": pattern} for pattern in found]}


def types_of(value: Any) -> frozenset[str]:
    """The names of types in a `type`, with integers where there are numbers. Raises CannotBeSaid."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise CannotBeSaid
    if not frozenset(names) <= {*TYPES, "integer"}:
        raise CannotBeSaid
    return frozenset(names) | ({"integer"} if "number" in names else set())


def _other_types(value: Any, types: frozenset[str]) -> list[Any]:
    kinds = types_of(value)
    rest = [name for name in TYPES if name not in kinds and name in types]
    if "integer" in kinds and "number" in rest:
        raise CannotBeSaid  # numbers that are no integers
    if "integer" not in kinds and "integer" in types and "number" not in rest:
        rest.append("integer")
    return [{"type": rest}] if rest else []


def _other_values(values: list[Any], types: frozenset[str]) -> list[Any]:
    """All values but some."""
    plain = [name for name in TYPES if name in types]
    choices: list[Any] = []
    if None in values and "null" in plain:
        plain.remove("null")
    truths = {value for value in values if isinstance(value, bool)}
    if truths and "boolean" in plain:
        plain.remove("boolean")
        choices += [{"const": truth} for truth in (True, False) if truth not in truths]
    texts = [value for value in values if isinstance(value, str)]
    if texts and "string" in plain:
        plain.remove("string")
        choices.append(_with_patterns(other_texts, texts))
    numbers = sorted({value for value in values if isinstance(value, int | float) and not isinstance(value, bool)})
    if "integer" in types and "number" not in plain:
        plain.append("integer")
    for kind in ("number", "integer"):
        if numbers and kind in plain:
            plain.remove(kind)
            choices += _between(kind, numbers)
    for kind, made in (("array", list), ("object", dict)):
        if kind in plain and any(isinstance(value, made) for value in values):
            raise CannotBeSaid
    return [*choices, {"type": plain}] if plain else choices


def _between(kind: str, numbers: list[int | float]) -> list[Any]:
    """The numbers between some."""
    if not all(math.isfinite(number) and abs(number) < MAX_EXACT for number in numbers):
        raise CannotBeSaid
    if kind == "integer":
        numbers = [int(number) for number in numbers if float(number).is_integer()]
    below = [{"exclusiveMaximum": number} for number in numbers]
    above = [{"exclusiveMinimum": number} for number in numbers]
    parts = [{**low, **high} for low, high in zip([{}, *above], [*below, {}], strict=True)]
    if kind == "integer":
        parts = [
            part
            for part in parts
            if part.get("exclusiveMaximum", math.inf) - part.get("exclusiveMinimum", -math.inf) > 1
        ]
    return [{"type": kind, **part} for part in parts]
