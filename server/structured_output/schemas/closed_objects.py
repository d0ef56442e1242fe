"""Closes the objects of a JSON schema: without `additionalProperties`, an object has only the properties it describes.

JSON Schema itself allows any further ones, and a small model then invents keys until its tokens are spent. llama.cpp
and xgrammar have the same default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from server.structured_output.schemas.references import target_of

_DATA = frozenset({"const", "enum", "default", "examples"})
_NAMED = frozenset({"$defs", "definitions", "properties", "patternProperties"})
_DEPENDENT = ("dependentRequired", "dependentSchemas", "dependencies")
_CHOICES = ("anyOf", "oneOf")
_PARTIAL = frozenset({"then", "else"})  # schemas that say something about a part of an object
_CONDITIONS = frozenset({"if", "not"})  # schemas that an object may fail, and which mean what they say
_OPENERS = ("additionalProperties", "unevaluatedProperties", "propertyNames", "minProperties", "maxProperties")
_MAX_REFERENCES = 100  # that are followed from one object


def close_objects(schema: Any) -> Any:
    """The schema with `additionalProperties: false` where it describes properties and says nothing of others.

    Schemas that hold for one value together (`allOf`, a reference with properties beside it) are closed together.
    """
    return _Closer(schema).close(schema, is_part=False)


class _Closer:
    def __init__(self, root: Any) -> None:
        self._root = root
        # Definitions that are a part of other objects stay open: these are closed themselves.
        self._parts = {id(target) for target in _referenced_parts(root, root)}

    def close(self, node: Any, *, is_part: bool) -> Any:
        if isinstance(node, list):
            return [self.close(part, is_part=is_part) for part in node]
        if not isinstance(node, dict):
            return node
        is_part = is_part or id(node) in self._parts
        is_composed = is_part or "properties" in node or "allOf" in node
        closed: dict[str, Any] = {}
        for key, value in node.items():
            if key in _DATA or key in _CONDITIONS:
                closed[key] = value
            elif key in (*_NAMED, *_DEPENDENT) and isinstance(value, dict):
                of_same = key in _DEPENDENT
                closed[key] = {name: self.close(part, is_part=of_same) for name, part in value.items()}
            else:
                of_same = key == "allOf" or key in _PARTIAL or (key in _CHOICES and is_composed)
                closed[key] = self.close(value, is_part=of_same)
        names = None if is_part else self._names(node, [_MAX_REFERENCES])
        if names is not None and self._describes_object(node):
            own = closed.get("properties", {})
            closed["properties"] = {**own, **{name: True for name in names if name not in own}}
            closed["additionalProperties"] = False
        return closed

    @staticmethod
    def _describes_object(node: Mapping[str, Any]) -> bool:
        kind = node.get("type", "object")
        is_object = kind == "object" or (isinstance(kind, list) and "object" in kind)
        return is_object and any(key in node for key in ("properties", "allOf"))

    def _names(self, node: Any, left: list[int]) -> dict[str, None] | None:
        """The properties that an object may have by all that holds for it; None where it may have any others."""
        left[0] -= 1
        if left[0] < 0 or not isinstance(node, dict) or any(key in node for key in _OPENERS):
            return None
        names: dict[str, None] = {}
        properties, required = node.get("properties", {}), node.get("required", [])
        if not isinstance(properties, dict) or not isinstance(required, list):
            return None
        names |= dict.fromkeys(properties)
        listed = [node[key] for key in ("allOf", *_CHOICES) if node.get(key)]
        if not all(isinstance(of_key, list) for of_key in listed):
            return None
        parts = [part for of_key in listed for part in of_key]
        parts += [node[key] for key in ("if", "then", "else") if node.get(key, True) not in (True, False, {})]
        for key in _DEPENDENT:
            named = node.get(key)
            needed = named.values() if isinstance(named, dict) else ()
            parts += [{"required": part} if isinstance(part, list) else part for part in needed]
        if "$ref" in node:
            parts.append(target_of(node["$ref"], self._root))
        if not properties and not parts and not any(key in node for key in ("required", "type", "not", "if")):
            return None
        for part in parts:
            found = self._names(part, left)
            if found is None:
                return None
            names |= found
        return names | dict.fromkeys(name for name in required if isinstance(name, str))


def _referenced_parts(node: Any, root: Any, *, is_part: bool = False) -> Iterator[dict[str, Any]]:
    """The targets of references that hold for a value together with other schemas."""
    if isinstance(node, list):
        for part in node:
            yield from _referenced_parts(part, root, is_part=is_part)
    if not isinstance(node, dict):
        return
    is_composed = "properties" in node or "allOf" in node
    if "$ref" in node and (is_part or is_composed):
        target = target_of(node["$ref"], root)
        if isinstance(target, dict):
            yield target
    for key, value in node.items():
        if key in _DATA:
            continue
        if key in (*_NAMED, *_DEPENDENT) and isinstance(value, dict):
            for part in value.values():
                yield from _referenced_parts(part, root, is_part=key in _DEPENDENT)
        else:
            is_partial = key in _PARTIAL or key in _CONDITIONS
            of_same = key == "allOf" or is_partial or (key in _CHOICES and (is_composed or is_part))
            yield from _referenced_parts(value, root, is_part=of_same)
