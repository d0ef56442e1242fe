"""Finds references of a JSON schema that never end: no value, or none that is finite, can match them.

llguidance compiles them, and an answer comes to a place where nothing may follow, or goes on until its tokens are
spent: `{"$ref": "#"}` alone, two definitions that refer to each other, an object that requires one like itself.
"""

from __future__ import annotations

from typing import Any

from server.structured_output.schemas.references import is_pointer, target_of

_MAX_ROUNDS = 16  # two or three suffice, unless a schema is made to need more; such a one passes
_NAMED = ("properties", "patternProperties")
_INNER = ("items", "additionalProperties")


def endless_reference(schema: Any) -> str | None:
    """A reference that no finite value matches, of those that an answer may come to; None where there is none.

    Raises RecursionError where references form too long a chain.
    """
    search = _Search(schema)
    for _ in range(_MAX_ROUNDS):
        num_before = len(search.finite)
        search.look()
        if len(search.finite) == num_before:
            return next((ref for ref, target in search.references.items() if id(target) not in search.finite), None)
    return None


class _Search:
    """Each round finds more parts that finite values match; what no round has found has none."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self.finite: set[int] = set()  # ids of objects, which `root` keeps alive
        self.references: dict[str, dict[str, Any]] = {}
        self._seen: set[int] = set()  # in this round

    def look(self) -> None:
        self._seen.clear()
        self._is_finite(self._root)

    def _is_finite(self, node: Any) -> bool:
        if not isinstance(node, dict):
            return True
        if id(node) not in self._seen:
            self._seen.add(id(node))
            if self._has_finite(node):
                self.finite.add(id(node))
        return id(node) in self.finite

    def _has_finite(self, node: dict[str, Any]) -> bool:
        """Whether a finite value matches, by what this round knows so far; looks at all parts."""
        needed = [self._is_finite(part) for part in _list(node.get("allOf"))]
        for key in ("anyOf", "oneOf"):
            choices = [self._is_finite(part) for part in _list(node.get(key))]
            needed.append(not choices or any(choices))
        reference = node.get("$ref")
        if isinstance(reference, str) and is_pointer(reference):
            target = target_of(reference, self._root)
            if isinstance(target, dict):
                self.references[reference] = target
            needed.append(self._is_finite(target))
        named = {
            key: {name: self._is_finite(part) for name, part in node[key].items()}
            for key in _NAMED
            if isinstance(node.get(key), dict)
        }
        inner = {key: self._is_finite(node.get(key)) for key in _INNER}
        first = [self._is_finite(part) for part in _list(node.get("prefixItems"))]
        if node.get("type") in ("object", ["object"]):
            properties = named.get("properties", {})
            required = [name for name in _list(node.get("required")) if isinstance(name, str)]
            needed += [properties.get(name, True) for name in required]
        if node.get("type") in ("array", ["array"]):
            least = node.get("minItems")
            count = int(least) if isinstance(least, int | float) else 0
            needed += first[: max(0, count)]
            needed.append(inner["items"] or count <= len(first))
        return all(needed)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
