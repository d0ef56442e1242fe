"""Says keywords of JSON Schema that llguidance does not know in others that it knows, exactly.

`not`, `if`, `dependentRequired` and others are said with choices of schemas that fail or hold; a `oneOf` of schemas
that overlap excludes the others from each. Where that cannot be said, the keyword stays and is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations, permutations
from math import comb, perm
from typing import Any

from server.structured_output.schemas.disjointness import Disjointness, is_same
from server.structured_output.schemas.negation import TYPES, CannotBeSaid, Negation, any_of, types_of
from server.structured_output.schemas.pattern_writer import (
    disjoint_patterns,
    is_match,
    pattern_without,
    without_look_around,
)
from server.structured_output.schemas.references import is_pointer, target_of
from server.structured_output.schemas.regular_expression import UnknownPattern

MAX_CHOICES = 100  # that one keyword is said with
MAX_PLACES = 16  # of an item that a list must contain
_DATA = frozenset({"const", "enum", "default", "examples", "dependentRequired"})  # keywords without schemas
_NAMED = frozenset({"$defs", "definitions", "properties", "patternProperties", "dependentSchemas", "dependencies"})
_LOOK_AROUND = ("(?=", "(?!", "(?<=", "(?<!")
_REWRITTEN = frozenset({
    "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies", "propertyNames", "contains",
    "minContains", "maxContains", "uniqueItems", "minProperties", "maxProperties", "oneOf", "pattern",
    "patternProperties",
})  # fmt: skip


def with_known_keywords(schema: Any) -> Any:
    """The schema in keywords that llguidance knows, as far as that can be said."""
    return _Rewriter(schema).rewritten(schema)


class _Rewriter:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._known: dict[int, Any] = {}  # by the id of objects, which `root` keeps alive
        self._open: set[int] = set()  # that are being rewritten

    def rewritten(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self.rewritten(part) for part in node]
        if not isinstance(node, dict):
            return node
        if id(node) not in self._known:
            self._open.add(id(node))
            self._known[id(node)] = self._rewrite(node)
            self._open.discard(id(node))
        return self._known[id(node)]

    def _resolve(self, reference: str) -> Any:
        """What a reference points to, rewritten."""
        if not is_pointer(reference):
            raise CannotBeSaid
        target = target_of(reference, self._root)
        if not isinstance(target, dict | bool) or id(target) in self._open:
            raise CannotBeSaid
        return self.rewritten(target)

    def _rewrite(self, node: dict[str, Any]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key, value in node.items():
            if key in _DATA:
                made[key] = value
            elif key in _NAMED and isinstance(value, dict):
                made[key] = {name: self.rewritten(part) for name, part in value.items()}
            else:
                made[key] = self.rewritten(value)
        if _REWRITTEN.isdisjoint(made):
            return made
        parts: list[Any] = []  # that hold too
        for say in (
            _idle, self._not, self._if, self._dependent, _names, _named_by_patterns, _contains, _unique, _counts,
            self._one, _pattern,
        ):  # fmt: skip
            try:
                parts += say(made)
            except (CannotBeSaid, UnknownPattern, RecursionError):
                continue
        if parts:
            all_of = made.get("allOf")
            made["allOf"] = [*(all_of if isinstance(all_of, list) else ()), *parts]
        return made

    def _not(self, node: dict[str, Any]) -> list[Any]:
        if "not" not in node:
            return []
        types = types_of(node["type"]) if "type" in node else (*TYPES, "integer")
        failing = Negation(self._resolve).of(node["not"], types)
        del node["not"]
        return [failing]

    def _if(self, node: dict[str, Any]) -> list[Any]:
        if "if" not in node:
            return []
        types = types_of(node["type"]) if "type" in node else (*TYPES, "integer")
        failing = Negation(self._resolve).of(node["if"], types)
        choices = [_both(node["if"], node.get("then", True)), _both(failing, node.get("else", True))]
        for key in ("if", "then", "else"):
            node.pop(key, None)
        return [any_of(choices)]

    def _dependent(self, node: dict[str, Any]) -> list[Any]:
        parts = []
        for key in ("dependentRequired", "dependentSchemas", "dependencies"):
            named = node.get(key)
            if not isinstance(named, dict):
                continue
            for name, needed in named.items():
                has_name: dict[str, Any] = {"type": "object", "required": [name]}
                if isinstance(needed, list):
                    with_name: Any = {**has_name, "required": [name, *needed]}
                else:
                    with_name = _both(has_name, needed)
                without_name = {"type": "object", "properties": {name: False}}
                parts.append(any_of([without_name, with_name, *_others(node, "object")]))
            del node[key]
        return parts

    def _one(self, node: dict[str, Any]) -> list[Any]:
        """`oneOf` as `anyOf`, with what overlaps excluded."""
        options = node.get("oneOf")
        if not isinstance(options, list) or not options:
            return []
        disjointness, negation = Disjointness(self._resolve), Negation(self._resolve)
        choices = []
        for at, option in enumerate(options):
            others = [other for index, other in enumerate(options) if index != at]
            overlapping = [other for other in others if not disjointness.holds(option, other)]
            choices.append(_both(option, *(negation.of(other, _types_in(option)) for other in overlapping)))
        replaced = {"anyOf" if key == "oneOf" and "anyOf" not in node else key: value for key, value in node.items()}
        replaced.pop("oneOf", None)
        parts: list[Any] = [{"anyOf": choices}] if "anyOf" in node else []
        if not parts:
            replaced["anyOf"] = choices
        node.clear()
        node |= replaced
        return parts


def _both(*parts: Any) -> Any:
    """The schema of the values that all of some schemas match."""
    if any(part is False for part in parts):
        return False
    kept = [part for part in parts if part is not True and part != {}]
    if not kept:
        return True
    return kept[0] if len(kept) == 1 else {"allOf": kept}


def _others(node: Mapping[str, Any], kind: str) -> list[Any]:
    """The schema of a node's values of other types than `kind`, if there are any."""
    types = _types_in(node)
    left = [name for name in (*TYPES, "integer") if name != kind and name in types]
    return [{"type": left}] if left else []


def _types_in(node: Any) -> frozenset[str]:
    try:
        return types_of(node["type"])
    except (CannotBeSaid, KeyError, TypeError):
        return frozenset({*TYPES, "integer"})


def _count(node: Mapping[str, Any], key: str) -> int | None:
    """A count that a keyword states, where it states one."""
    value = node.get(key)
    is_count = (
        isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 and float(value).is_integer()
    )
    if key in node and not is_count:
        raise CannotBeSaid
    return int(value) if key in node else None  # type: ignore[arg-type]


def _idle(node: dict[str, Any]) -> list[Any]:
    """Drops keywords that ask for nothing."""
    if node.get("uniqueItems") is False or (node.get("uniqueItems") is True and _count(node, "maxItems") in (0, 1)):
        del node["uniqueItems"]
    if "contains" not in node:
        node.pop("minContains", None)
        node.pop("maxContains", None)
    elif node.get("minContains") == 0 and "maxContains" not in node:
        del node["contains"], node["minContains"]
    if "if" not in node or not {"then", "else"} & node.keys():
        for key in ("if", "then", "else"):
            node.pop(key, None)
    if node.get("minProperties") == 0 and not isinstance(node["minProperties"], bool):
        del node["minProperties"]
    return []


def _names(node: dict[str, Any]) -> list[Any]:
    """`propertyNames`, with the names of an object's properties and the patterns of the others."""
    if "propertyNames" not in node:
        return []
    asked = node["propertyNames"]
    if not isinstance(asked, dict | bool):
        raise CannotBeSaid
    if isinstance(asked, dict):
        asked = {key: value for key, value in asked.items() if key not in ("type", "title", "description", "$comment")}
        if "type" in node["propertyNames"] and "string" not in types_of(node["propertyNames"]["type"]):
            asked = False
    properties = node.get("properties", {})
    others = node.get("additionalProperties", True)
    if "patternProperties" in node or not isinstance(properties, dict):
        raise CannotBeSaid
    if asked is False:
        changed: dict[str, Any] = {"maxProperties": 0}
    elif asked is True or not asked:
        changed = {}
    elif asked.keys() <= {"enum", "const"}:
        listed = [asked["const"]] if "const" in asked else asked["enum"]
        if not isinstance(listed, list):
            raise CannotBeSaid
        names = dict.fromkeys(name for name in listed if isinstance(name, str))
        kept = {name: part if name in names else False for name, part in properties.items()}
        kept |= {name: others for name in names if name not in kept}
        changed = {"properties": kept, "additionalProperties": False}
    elif asked.keys() <= {"pattern", "minLength", "maxLength"} and isinstance(asked.get("pattern", ""), str):
        patterns = [asked["pattern"]] if "pattern" in asked else []
        least, most = _count(asked, "minLength") or 0, _count(asked, "maxLength")
        if least or most is not None:
            patterns.append(f"^[\\s\\S]{{{least},{'' if most is None else most}}}$")
        if len(patterns) != 1:
            raise CannotBeSaid
        kept = {name: part if _has_name(asked, name) else False for name, part in properties.items()}
        described = [name for name, part in kept.items() if part is not False]
        pattern = patterns[0] if others is True or not described else pattern_without(patterns[0], described)
        changed = {"properties": kept, "patternProperties": {pattern: others}, "additionalProperties": False}
    else:
        raise CannotBeSaid
    del node["propertyNames"]
    if "maxProperties" in changed and "maxProperties" in node:
        return [changed]
    node |= changed
    return []


def _has_name(asked: Mapping[str, Any], name: str) -> bool:
    least, most = _count(asked, "minLength") or 0, _count(asked, "maxLength")
    if len(name) < least or (most is not None and len(name) > most):
        return False
    return "pattern" not in asked or is_match(asked["pattern"], name)


def _named_by_patterns(node: dict[str, Any]) -> list[Any]:
    """`patternProperties` that overlap, as ones that do not."""
    named = node.get("patternProperties")
    if not isinstance(named, dict) or len(named) < 2:
        return []
    found = disjoint_patterns([*named])
    if all(len(places) == 1 for _, places in found):
        return []
    parts = [*named.values()]
    node["patternProperties"] = {pattern: _both(*(parts[at] for at in places)) for pattern, places in found}
    return []


def _contains(node: dict[str, Any]) -> list[Any]:
    """`contains` in a list of few items: one of the places has what it asks for."""
    most = _count(node, "maxItems")
    if "contains" not in node:
        return []
    if {"minContains", "maxContains"} & node.keys() or most is None or most > MAX_PLACES:
        raise CannotBeSaid
    asked = node.pop("contains")
    places = [{"type": "array", "prefixItems": [*([True] * at), asked], "minItems": at + 1} for at in range(most)]
    return [any_of([*places, *_others(node, "array")])]


def _unique(node: dict[str, Any]) -> list[Any]:
    """`uniqueItems` of few listed values: all their orders."""
    if node.get("uniqueItems") is not True:
        return []
    items = node.get("items")
    values = items.get("enum") if isinstance(items, dict) else None
    if not isinstance(values, list) or "prefixItems" in node:
        raise CannotBeSaid
    if len(values) > MAX_CHOICES or any(isinstance(value, list | dict) for value in values):
        raise CannotBeSaid
    different = [value for at, value in enumerate(values) if not any(is_same(value, one) for one in values[:at])]
    least, most = _count(node, "minItems") or 0, _count(node, "maxItems")
    largest = len(different) if most is None else min(most, len(different))
    if sum(perm(len(different), size) for size in range(least, largest + 1)) > MAX_CHOICES:
        raise CannotBeSaid
    del node["uniqueItems"]
    lists = [
        {"type": "array", "prefixItems": [{"const": value} for value in order], "minItems": size, "maxItems": size}
        for size in range(least, largest + 1)
        for order in permutations(different, size)
    ]
    return [any_of([*lists, *_others(node, "array")])]


def _counts(node: dict[str, Any]) -> list[Any]:
    """`minProperties` and `maxProperties` beside optional properties: which of these there are, as choices."""
    least, most = _count(node, "minProperties"), _count(node, "maxProperties")
    properties, required = node.get("properties", {}), node.get("required", [])
    if (least is None and most is None) or not isinstance(properties, dict) or not isinstance(required, list):
        return []
    if not all(isinstance(name, str) for name in required):
        raise CannotBeSaid
    optional = [name for name, part in properties.items() if name not in required and part is not False]
    if not optional:
        return []
    num_required = len(dict.fromkeys(required))
    is_closed = node.get("additionalProperties", True) is False and not node.get("patternProperties")
    needed = min(max(0, (least or 0) - num_required), len(optional) + 1)  # more than there are is as good as any
    allowed = len(optional) if most is None else min(len(optional), most - num_required)
    # How many there may be exactly, where more of them, or too few without further properties, are not allowed.
    exact = range(needed if is_closed else 0, allowed + 1)
    if most is None:
        exact = range(0 if is_closed else needed)
    num_choices = sum(comb(len(optional), size) for size in exact)
    num_choices += comb(len(optional), needed) if most is None else 0
    if num_choices > MAX_CHOICES or allowed < 0:
        raise CannotBeSaid
    bounds = {key: node.pop(key) for key in ("minProperties", "maxProperties") if key in node}
    choices: list[Any] = []
    for size in exact:
        for names in combinations(optional, size):
            absent = {name: False for name in optional if name not in names}
            choices.append(
                {"type": "object", "properties": absent, "required": [*names], **({} if is_closed else bounds)}
            )
    if most is None:
        choices += [{"type": "object", "required": [*names]} for names in combinations(optional, needed)]
    return [any_of([*choices, *_others(node, "object")])]


def _pattern(node: dict[str, Any]) -> list[Any]:
    """A pattern with look-arounds, as patterns without."""
    pattern = node.get("pattern")
    if not isinstance(pattern, str) or not any(mark in pattern for mark in _LOOK_AROUND):
        return []
    found = without_look_around(pattern)
    del node["pattern"]
    return [{"pattern": each} for each in found]
