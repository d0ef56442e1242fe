"""The JSON types that a tool's schema allows for an argument, for syntaxes that do not tell texts from other values."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from server.output_parsers.reading.json_repair import NotJson, repaired
from server.structured_output.schemas.type_names import known_type

MAX_PARTS = 200  # of a schema, that are looked at for one argument
_ALL = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})


class ArgumentType:
    """The type of one argument: the names of JSON types, and the listed values where there are any."""

    def __init__(self, types: frozenset[str], values: tuple[Any, ...] | None = None) -> None:
        self.types = types
        self.values = values

    @property
    def is_text(self) -> bool:
        """Whether a value is a string whatever it looks like."""
        return self.types <= {"string"}

    def to_json(self, text: str) -> str:
        """The JSON of a value that was written as text: a string where the schema allows nothing else that fits."""
        stripped = text.strip()
        if "null" in self.types and stripped in ("null", "None"):
            return "null"
        has_string = "string" in self.types
        if self.values is not None:
            if has_string and text in self.values:
                return _string(text)
            read = _read(stripped)
            return json.dumps(read) if read is not None and read in self.values else _string(text)
        if has_string and not (stripped[:1] in ("{", "[") and self.types & {"object", "array"}):
            return _string(text)
        if "boolean" in self.types and stripped.lower() in ("true", "false"):
            return stripped.lower()
        try:
            written = repaired(stripped)
        except NotJson:
            return _string(text)
        if "integer" in self.types and "number" not in self.types:
            return _as_integer(written)
        return written


TEXT = ArgumentType(frozenset({"string"}))
ANY_BUT_TEXT = ArgumentType(_ALL - TEXT.types)


def argument_type(schema: Any, key: str) -> ArgumentType:
    """The type of the argument `key` in the schema of a tool. An argument that it does not describe is text."""
    found = _described(schema, key)
    return _type_of(found[0], schema) if found and isinstance(found[0], dict) else TEXT


def has_argument(schema: Any, key: str) -> bool:
    """Whether the schema of a tool describes the argument `key`."""
    return bool(_described(schema, key))


def _described(schema: Any, key: str) -> list[Any]:
    return [
        properties[key]
        for part in _alternatives(schema, schema, [MAX_PARTS])
        if isinstance(properties := part.get("properties"), dict) and key in properties
    ]


def _type_of(node: Any, root: Any) -> ArgumentType:
    parts = list(_alternatives(node, root, [MAX_PARTS]))
    types: set[str] = set()
    values: list[Any] | None = None
    for part in parts:
        listed = part.get("enum") if isinstance(part.get("enum"), list) else None
        if "const" in part:
            listed = [part["const"]]
        if listed is not None:
            values = [*(values or ()), *listed]
            types |= {_kind(value) for value in listed}
            continue
        kind = part.get("type")
        if isinstance(kind, str):
            types.add(known_type(kind))
        elif isinstance(kind, list):
            types |= {known_type(name) for name in kind if isinstance(name, str)}
        elif "properties" in part:
            types.add("object")
        elif "items" in part:
            types.add("array")
    only_listed = values is not None and types <= {_kind(value) for value in values} | {"null"}
    return ArgumentType(frozenset(types & _ALL) or TEXT.types, tuple(values) if values and only_listed else None)


def _alternatives(node: Any, root: Any, left: list[int]) -> Iterator[dict[str, Any]]:
    """The schema and all that apply to the same value: by reference, or as one of several."""
    left[0] -= 1
    if not isinstance(node, dict) or left[0] < 0:
        return
    yield node
    reference = node.get("$ref")
    if isinstance(reference, str):
        yield from _alternatives(_resolved(reference, root), root, left)
    for name in ("anyOf", "oneOf", "allOf"):
        parts = node.get(name)
        for part in parts if isinstance(parts, list) else ():
            yield from _alternatives(part, root, left)


def _resolved(reference: str, root: Any) -> Any:
    node = root
    for step in reference.removeprefix("#").split("/")[1:] if reference.startswith("#") else ("",):
        key = step.replace("~1", "/").replace("~0", "~")
        node = node.get(key) if isinstance(node, dict) else None
    return node


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case int():
            return "integer"
        case float():
            return "number"
        case list():
            return "array"
    return "object"


def _read(text: str) -> Any:
    try:
        return json.loads(repaired(text))
    except (NotJson, ValueError, RecursionError):
        return None


def _as_integer(written: str) -> str:
    """An integer that is written as a number with a point, as the integer."""
    try:
        number = float(written)
    except ValueError:
        return written
    return str(int(number)) if not written.lstrip("-").isdigit() and number.is_integer() else written


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
