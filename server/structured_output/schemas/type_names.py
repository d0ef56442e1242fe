"""Reads JSON schemas as their authors mean them: types of other languages, lists of other types' values, any format.

Tools are often described with the types of Python, of Java or of Google's API, and with the values of an array's items
at the array. By the letter of JSON Schema no value has such a type, or nothing matches. A `format` says something about
a text; the ones that are not known here are not checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TYPES = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
_OTHERS = {
    "str": "string", "char": "string", "text": "string",
    "float": "number", "double": "number", "decimal": "number",
    "int": "integer", "long": "integer", "short": "integer", "byte": "integer", "bigint": "integer",
    "bool": "boolean",
    "none": "null", "nonetype": "null", "": "any",
    "dict": "object", "hashmap": "object", "hashtable": "object", "map": "object",
    "list": "array", "tuple": "array", "set": "array", "arraylist": "array", "queue": "array", "stack": "array",
}  # fmt: skip
# The formats of texts that are enforced.
FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid")
_DATA = frozenset({"const", "enum", "default", "examples", "dependentRequired"})  # keywords without schemas
_NAMED = frozenset({"$defs", "definitions", "properties", "patternProperties", "dependentSchemas", "dependencies"})


def with_known_types(node: Any) -> Any:
    """The schema with JSON Schema's own names of types; other parts are as they were."""
    if isinstance(node, list):
        return [with_known_types(part) for part in node]
    if not isinstance(node, dict):
        return node
    known: dict[str, Any] = {}
    for key, value in node.items():
        if key in _DATA:
            known[key] = value
        elif key == "format" and value not in FORMATS:
            continue  # it says something about a text that is not checked
        elif key in _NAMED and isinstance(value, dict):
            known[key] = {name: with_known_types(part) for name, part in value.items()}
        elif key == "type":
            kind = [known_type(name) for name in value] if isinstance(value, list) else known_type(value)
            if kind != "any" and not (isinstance(kind, list) and "any" in kind):
                known[key] = kind
        else:
            known[key] = with_known_types(value)
    return _without_contradiction(known)


def known_type(name: Any) -> Any:
    """JSON Schema's name of a type, or `any`; a name that says nothing stays as it is."""
    if not isinstance(name, str) or name in _TYPES:
        return name
    low = name.lower()
    return low if low in _TYPES or low == "any" else _OTHERS.get(low, name)


def _without_contradiction(node: dict[str, Any]) -> dict[str, Any]:
    """The schema without a type that none of its listed values has; an array's list may be that of its items."""
    kind, values = node.get("type"), node.get("enum")
    if not isinstance(kind, str) or kind not in _TYPES or not isinstance(values, list) or not values:
        return node
    if any(_has_type(value, kind) for value in values):
        return node
    changed: dict[str, Any] = {name: part for name, part in node.items() if name != "enum"}
    items = node.get("items")
    if kind == "array" and (items is None or (isinstance(items, Mapping) and "enum" not in items)):
        return {**changed, "items": _without_contradiction({**(items or {}), "enum": values})}
    return {name: part for name, part in node.items() if name != "type"}


def _has_type(value: Any, kind: str) -> bool:
    match kind:
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "integer" | "number":
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            return is_number and (kind == "number" or float(value).is_integer())
        case "null":
            return value is None
        case "array":
            return isinstance(value, list)
    return isinstance(value, dict)
