"""References that no finite value matches."""

from __future__ import annotations

from typing import Any

import pytest

from server.structured_output.schemas.endless_references import endless_reference

SELF = {"$ref": "#"}
A, B = {"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}
NULL = {"type": "null"}


def an_object(part: Any, *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": part}, "required": list(required)}


@pytest.mark.parametrize(
    ("schema", "reference"),
    [
        (SELF, "#"),
        ({"anyOf": [SELF]}, "#"),
        ({"allOf": [SELF, {"type": "object"}]}, "#"),
        ({**A, "$defs": {"a": B, "b": A}}, "#/$defs/a"),
        (an_object(SELF, "a"), "#"),
        ({"type": "array", "items": SELF, "minItems": 1}, "#"),
        ({"type": "array", "prefixItems": [SELF], "minItems": 1}, "#"),
        ({**an_object(A), "$defs": {"a": A}}, "#/$defs/a"),  # an answer may come to it
        ({"type": "array", "items": an_object(A), "$defs": {"a": {"anyOf": [A, B]}, "b": B}}, "#/$defs/a"),
    ],
)
def test_those_that_never_end_are_found(schema: dict[str, Any], reference: str) -> None:
    assert endless_reference(schema) == reference


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        True,
        an_object(SELF),
        an_object({"anyOf": [SELF, NULL]}, "a"),
        an_object({"type": "array", "items": SELF}, "a"),
        {"anyOf": [an_object(SELF, "a"), NULL]},
        {"type": "array", "items": SELF, "prefixItems": [NULL], "minItems": 1},
        {**A, "$defs": {"a": {"anyOf": [B, NULL]}, "b": {"anyOf": [A, {"type": "string"}]}}},
        {**A, "$defs": {"a": {"type": "object", "properties": {"b": B}, "required": ["b"]}, "b": {"anyOf": [A, NULL]}}},
        {"$ref": "#/$defs/none"},
        {"type": "string", "$defs": {"a": A}},  # nothing comes to it
    ],
)
def test_those_that_end_are_not(schema: Any) -> None:
    assert endless_reference(schema) is None


def test_a_schema_that_is_made_to_take_long_passes_soon() -> None:
    """Each round finds one more definition, because those before it are looked at first."""
    definitions = {str(index): {"anyOf": [{"$ref": f"#/$defs/{index + 1}"}, A]} for index in range(40)}
    assert endless_reference({**A, "$defs": {"a": {"$ref": "#/$defs/0"}, **definitions, "40": NULL}}) is None
