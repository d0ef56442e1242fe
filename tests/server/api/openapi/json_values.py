"""Values that a JSON schema allows, and values that it nearly allows."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

MOST_ITEMS = 3  # of a list or an object
MOST_LEVELS = 5  # of a value; deeper there are only values that hold no others

NUMBERS = st.one_of(
    st.integers(-2, 40), st.sampled_from([2**31, 2**63, -(2**63), 10**30]), st.floats(allow_nan=False, width=32)
)
TEXTS = st.one_of(
    st.text(max_size=8), st.sampled_from(["", "\0", "<|im_end|>", "../..", "💧", "a" * 300, "{{", "auto", "file_id"])
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=MOST_ITEMS), st.dictionaries(st.text(max_size=5), inner, max_size=MOST_ITEMS)
    ),
    max_leaves=6,
)


@st.composite
def values(draw: st.DrawFn, schema: Any, schemas: dict[str, Any], level: int = 0) -> Any:
    """A value of `schema`; one part in about twenty is anything.

    Args:
        schemas: those that references name, by their names.
    """
    if schema is True or not schema or level > MOST_LEVELS or draw(st.integers(0, 19)) == 13:
        return draw(ANYTHING if level <= MOST_LEVELS else SCALARS)
    if "$ref" in schema:
        return draw(values(schemas[schema["$ref"].rpartition("/")[2]], schemas, level))
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return draw(values(draw(st.sampled_from(schema[choice])), schemas, level))
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return draw(st.sampled_from(schema["enum"]))
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = draw(st.sampled_from(kind))
    match kind:
        case "object":
            return draw(_objects(schema, schemas, level))
        case "array":
            items = [values(item, schemas, level + 1) for item in schema.get("prefixItems", ())]
            item = values(schema.get("items", True), schemas, level + 1)
            return [*(draw(each) for each in items), *draw(st.lists(item, max_size=MOST_ITEMS))]
        case "string":
            return draw(TEXTS)
        case "integer":
            return draw(st.integers(schema.get("minimum", -2), schema.get("maximum", 40)))
        case "number":
            return draw(NUMBERS)
        case "boolean":
            return draw(st.booleans())
        case "null":
            return None
    return draw(ANYTHING)


@st.composite
def _objects(draw: st.DrawFn, schema: dict[str, Any], schemas: dict[str, Any], level: int) -> dict[str, Any]:
    fields, required = schema.get("properties", {}), schema.get("required", [])
    optional = sorted(fields.keys() - set(required))
    chosen = draw(st.lists(st.sampled_from(optional), unique=True, max_size=MOST_ITEMS)) if optional else []
    made = {name: draw(values(fields[name], schemas, level + 1)) for name in [*required, *chosen] if name in fields}
    if draw(st.integers(0, 9)) == 7:
        made[draw(st.text(max_size=8))] = draw(ANYTHING)
    return made
