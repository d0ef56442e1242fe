"""Finds the part of a JSON schema that cannot be used, for error messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

MAX_TRIALS = 100  # schemas that are compiled for one message
_NAMED = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
_SINGLE = ("items", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames")
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")
_TOOL = re.compile(r"tool\d+")

Compile = Callable[[dict[str, Any]], str | None]  # returns why a schema cannot be compiled


def located(schema: Any, refusal: Compile) -> str | None:
    """The reason with the path of the part that fails, and in a schema of calls with the name of the tool.

    None where no part of the schema fails, or none alone.
    """
    search = _Search(schema, refusal)
    try:
        for label, part in _tools_of(schema) or [("", schema)]:
            found = search.failing(part, ())
            if found is not None:
                path, reason = found
                where = f"{label}{'.'.join(path)}".strip()
                return f"{where}: {reason}" if where else None
    except _TooManyTrials:
        pass
    return None


class _TooManyTrials(Exception):
    pass


class _Search:
    def __init__(self, root: Any, refusal: Compile) -> None:
        self._definitions = {
            key: root[key] for key in ("$defs", "definitions") if isinstance(root, dict) and key in root
        }
        self._refusal = refusal
        self._left = MAX_TRIALS

    def failing(self, node: Any, path: tuple[str, ...]) -> tuple[tuple[str, ...], str] | None:
        """The path of the smallest part that fails, and the reason; None where `node` can be compiled."""
        if not isinstance(node, dict):
            return None
        self._left -= 1
        if self._left < 0:
            raise _TooManyTrials
        reason = self._refusal({**self._definitions, **node})
        if reason is None:
            return None
        for step, part in _parts(node):
            found = self.failing(part, (*path, *step))
            if found is not None:
                return found
        return path, reason


def _parts(node: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key in _NAMED:
        named = node.get(key)
        if isinstance(named, dict):
            for name, part in named.items():
                yield (key, str(name)), part
    for key in _SINGLE:
        if key in node:
            yield (key,), node[key]
    for key in _LISTED:
        listed = node.get(key)
        for index, part in enumerate(listed if isinstance(listed, list) else ()):
            yield (f"{key}[{index}]",), part


def _tools_of(schema: Any) -> list[tuple[str, Any]]:
    """The schemas of the tools in a schema of calls, each with words for its name."""
    definitions = schema.get("$defs") if isinstance(schema, dict) else None
    if not isinstance(definitions, dict) or not all(map(_TOOL.fullmatch, definitions)):
        return []
    call = schema.get("items", schema)
    calls = call.get("anyOf", [call]) if isinstance(call, dict) else []
    try:
        names = [one["properties"]["name"]["const"] for one in calls]
    except (KeyError, TypeError):
        return []
    return [(f"the tool {name} ", part) for name, part in zip(names, definitions.values(), strict=False)]
