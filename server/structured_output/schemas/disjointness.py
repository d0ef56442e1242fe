"""Finds JSON schemas that no value matches at once."""

from __future__ import annotations

from typing import Any

from server.structured_output.schemas.negation import TYPES, CannotBeSaid, Resolve, types_of

MAX_DEPTH = 16
MAX_COMPARISONS = 2000  # of two schemas; references may make one refer to very many
_ALL = frozenset({*TYPES, "integer"})


class Disjointness:
    """Compares the schemas that a root has.

    Args:
        resolve: finds what a reference points to; raises CannotBeSaid.
    """

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve
        self._num_comparisons = 0

    def holds(self, one: Any, other: Any, depth: int = 0) -> bool:
        """Whether it is certain that no value matches both."""
        if one is False or other is False:
            return True
        self._num_comparisons += 1
        if self._num_comparisons > MAX_COMPARISONS:
            return False
        if depth > MAX_DEPTH or not isinstance(one, dict) or not isinstance(other, dict):
            return False
        if _differ(one, other) or self._objects_differ(one, other, depth):
            return True
        return self._parts_differ(one, other, depth) or self._parts_differ(other, one, depth)

    def _parts_differ(self, one: dict[str, Any], other: dict[str, Any], depth: int) -> bool:
        """Whether a part of `one` that holds for all its values differs from `other`."""
        parts = one.get("allOf")
        if isinstance(parts, list) and any(self.holds(part, other, depth + 1) for part in parts):
            return True
        for key in ("anyOf", "oneOf"):
            choices = one.get(key)
            if isinstance(choices, list) and all(self.holds(choice, other, depth + 1) for choice in choices):
                return True
        reference = one.get("$ref")
        if not isinstance(reference, str):
            return False
        try:
            return self.holds(self._resolve(reference), other, depth + 1)
        except CannotBeSaid:
            return False

    def _objects_differ(self, one: dict[str, Any], other: dict[str, Any], depth: int) -> bool:
        if _kinds(one) != {"object"} or _kinds(other) != {"object"}:
            return False
        names = dict.fromkeys([*_required(one), *_required(other)])
        return any(self.holds(_property(one, name), _property(other, name), depth + 1) for name in names)


def _differ(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether types or listed values differ."""
    if not _kinds(one) & _kinds(other):
        return True
    values, others = _values(one), _values(other)
    return values is not None and others is not None and not any(is_same(a, b) for a in values for b in others)


def _kinds(node: dict[str, Any]) -> frozenset[str]:
    try:
        kinds = types_of(node["type"]) if "type" in node else _ALL
    except CannotBeSaid:
        kinds = _ALL
    values = _values(node)
    return kinds if values is None else kinds & {kind for value in values for kind in _kinds_of(value)}


def _kinds_of(value: Any) -> tuple[str, ...]:
    match value:
        case None:
            return ("null",)
        case bool():
            return ("boolean",)
        case str():
            return ("string",)
        case int() | float():
            return ("number", "integer") if float(value).is_integer() else ("number",)
        case list():
            return ("array",)
    return ("object",)


def _values(node: dict[str, Any]) -> list[Any] | None:
    if "const" in node:
        return [node["const"]]
    listed = node.get("enum")
    return listed if isinstance(listed, list) else None


def is_same(one: Any, other: Any) -> bool:
    """Whether two values are the same in JSON."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _required(node: dict[str, Any]) -> list[str]:
    names = node.get("required")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _property(node: dict[str, Any], name: str) -> Any:
    properties = node.get("properties")
    if isinstance(properties, dict) and name in properties:
        return properties[name]
    return True if "patternProperties" in node else node.get("additionalProperties", True)
