"""The grammar of calls that an answer must consist of, however large the schemas of the tools are."""

from __future__ import annotations

import sys
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.api.openai.chat_request import ChatCompletionRequest
from server.protocol.tools import ForcedCalls, FunctionCall, FunctionDefinition, OfferedCalls

NAMES = st.sampled_from(["$ref", "a", '"$ref', ',"$ref":"#', "\\"])
TEXTS = st.sampled_from(["#", "#/x", "a", '{"$ref":"#', ',"$ref":"#/', '\\",', "{", "/#"])
SCHEMAS = st.dictionaries(
    NAMES,
    st.recursive(TEXTS | st.integers(-9, 9) | st.none(), lambda part: st.lists(part) | st.dictionaries(NAMES, part)),
)


def moved(schema: Any, place: str) -> Any:
    """A schema whose references to itself begin at `place`."""
    match schema:
        case list():
            return [moved(part, place) for part in schema]
        case dict():
            parts = {name: moved(part, place) for name, part in schema.items()}
            reference = schema.get("$ref")
            is_own = isinstance(reference, str) and reference.startswith("#")
            return parts | ({"$ref": place + reference[1:]} if is_own else {})
    return schema


@given(SCHEMAS, SCHEMAS)
def test_references_of_a_tools_schema_begin_at_its_place(first: dict[str, Any], second: dict[str, Any]) -> None:
    tools = [FunctionDefinition(name=name, parameters=schema) for name, schema in (("f", first), ("g", second))]
    grammar = orjson.loads(ForcedCalls(tools, 2).to_grammar().source)
    empty = {"type": "object", "properties": {}}
    expected = [moved(schema or empty, f"#/$defs/tool{at}") for at, schema in enumerate((first, second))]
    assert list(grammar["$defs"].values()) == expected
    assert [call["properties"]["arguments"] for call in grammar["items"]["anyOf"]] == [
        {"$ref": "#/$defs/tool0"},
        {"$ref": "#/$defs/tool1"},
    ]


def test_the_values_of_a_schema_are_not_walked_through() -> None:
    tool = FunctionDefinition(name="f", parameters={"enum": ["x"] * 10_000})
    calls = []
    sys.setprofile(lambda _frame, event, _value: calls.append(event))
    try:
        ForcedCalls([tool], 1).to_grammar()
    finally:
        sys.setprofile(None)
    assert len(calls) < 1000


def test_names_of_tools_are_those_of_mcp_servers() -> None:
    name = "mcp.server/list:all-" + "x" * 100
    request = ChatCompletionRequest.parse(
        {
            "messages": [{"role": "user", "content": "a"}],
            "tools": [{"function": {"name": name}}],
            "tool_choice": "required",
        }
    )
    assert [tool.function.name for tool in request.tools or ()] == [name]
    assert name in ForcedCalls([FunctionDefinition(name=name)], 1).to_grammar().source
    with pytest.raises(ValueError, match="pattern"):
        FunctionDefinition(name="two words")


def test_words_of_large_schemas_are_no_part_of_the_grammar() -> None:
    words = {"description": "w" * 500, "title": "w", "default": "w", "examples": ["w"]}
    properties = {
        "description": {"type": "string", **words},  # a name, and no words
        "choice": {"enum": [{"description": "kept"}, "w"], **words},
        "parts": {"type": "array", "items": {"$ref": "#/$defs/Part"}, **words},
    }
    part = {"anyOf": [{"type": "integer", **words}, {"const": {"title": "kept"}}]}
    parameters = {"type": "object", "properties": properties, "required": ["description"], "$defs": {"Part": part}}
    small, large = [ForcedCalls([FunctionDefinition(name=f"f{at}", parameters=parameters) for at in range(many)], 1)
                    for many in (1, 40)]  # fmt: skip
    assert "wwww" in small.to_grammar().source
    grammar = orjson.loads(large.to_grammar().source)
    assert len(grammar["$defs"]) == 40
    assert grammar["$defs"]["tool7"] == {
        "type": "object",
        "properties": {
            "description": {"type": "string"},
            "choice": {"enum": [{"description": "kept"}, "w"]},
            "parts": {"type": "array", "items": {"$ref": "#/$defs/tool7/$defs/Part"}},
        },
        "required": ["description"],
        "$defs": {"Part": {"anyOf": [{"type": "integer"}, {"const": {"title": "kept"}}]}},
    }


def test_names_of_arguments_are_no_words_of_a_schema() -> None:
    named = {"title": ["description"], "description": ["title"]}
    schema = {"dependentRequired": named, "dependencies": named, "title": "left out"}
    calls = OfferedCalls([FunctionDefinition(name="f", parameters=schema)], is_parallel=True).without_words()
    assert calls.tools[0].parameters == {"dependentRequired": named, "dependencies": named}


def test_a_schema_in_another_field_counts_where_its_own_is_null() -> None:
    tool = FunctionDefinition.model_validate({"name": "f", "parameters": None, "input_schema": {"type": "object"}})
    assert tool.parameters == {"type": "object"}


@pytest.mark.parametrize(
    ("sent", "text"), [({"properties": []}, '{"properties":[]}'), ([], ""), (None, ""), ('{"a":1}', '{"a":1}')]
)
def test_the_arguments_of_a_call_are_no_schema(sent: Any, text: str) -> None:
    assert FunctionCall.model_validate({"name": "f", "arguments": sent}).arguments == text
