"""Cases of structured output, each with a check of its outputs, for simulated models and for a real one."""

from __future__ import annotations

import ast
import csv
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jsonschema


@dataclass(frozen=True)
class StructuredCase:
    name: str
    parameters: dict[str, Any]  # of the body of a request
    check: Callable[[str], None]  # raises AssertionError unless the text is what was asked for
    is_bounded: bool = True  # whether all outputs are short


def schema_case(name: str, schema: dict[str, Any], *, is_bounded: bool = True) -> StructuredCase:
    """A schema as response_format and as structured_outputs, alternately."""

    def check(text: str) -> None:
        value = json.loads(text)
        validator = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
        validator(schema, format_checker=jsonschema.FormatChecker()).validate(value)

    if len(name) % 2:
        wish = {"response_format": {"type": "json_schema", "json_schema": {"name": "test", "schema": schema}}}
    else:
        wish = {"structured_outputs": {"json": schema}}
    return StructuredCase(name, wish, check, is_bounded)


def regex_case(name: str, pattern: str) -> StructuredCase:
    def check(text: str) -> None:
        assert re.fullmatch(pattern, text), text

    return StructuredCase(name, {"structured_outputs": {"regex": pattern}}, check)


def choice_case(name: str, choices: list[str]) -> StructuredCase:
    def check(text: str) -> None:
        assert text in choices

    return StructuredCase(name, {"structured_outputs": {"choice": choices}}, check)


def grammar_case(name: str, grammar: str, check: Callable[[str], None], *, is_bounded: bool = True) -> StructuredCase:
    return StructuredCase(name, {"structured_outputs": {"grammar": grammar}}, check, is_bounded)


def _check_any_object(text: str) -> None:
    assert isinstance(json.loads(text), dict)


def _check_arithmetic(text: str) -> None:
    tree = ast.parse(text, mode="eval")
    allowed = (ast.Expression, ast.BinOp, ast.Constant, ast.operator)
    assert all(isinstance(node, allowed) for node in ast.walk(tree)), text


def _check_csv(text: str) -> None:
    (fields,) = csv.reader([text])
    assert 1 <= len(fields) <= 4


def _check_command(text: str) -> None:
    assert re.fullmatch(r"(move|turn) (left|right) [0-9]{1,2}", text), text


def _check_call(text: str) -> None:
    name, _, rest = text.partition("(")
    assert name in ("add", "sub")
    assert rest.endswith(")")
    arguments = json.loads(rest[:-1])
    assert list(arguments) == ["x"]
    assert isinstance(arguments["x"], int)


def _object(properties: dict[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
        **more,
    }


_WORD = {"type": "string", "maxLength": 12}
_DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}

_SCHEMAS: dict[str, dict[str, Any]] = {
    "object": _object({"name": _WORD, "age": {"type": "integer", "minimum": 0, "maximum": 120}}, "name", "age"),
    "nested objects": _object({"a": _object({"b": _object({"c": {"type": "boolean"}}, "c")}, "b")}, "a"),
    "optional properties": _object({"a": _DIGIT, "b": _WORD, "c": {"type": "boolean"}}, "b"),
    "only optional": _object({"a": _DIGIT, "b": {"type": "null"}}),
    "pattern properties": {
        "type": "object",
        "patternProperties": {"^n_[a-z]{1,3}$": _DIGIT},
        "additionalProperties": False,
    },
    "no property": _object({}),
    "enum of strings": {"enum": ["red", "green", "blue"]},
    "mixed enum": {"enum": [1, "one", None, True, [1, 2], {"a": 1}]},
    "const": {"const": {"kind": "point", "at": [0, 1.5]}},
    "boolean or null": {"type": ["boolean", "null"]},
    "nullable": _object({"a": {"anyOf": [_WORD, {"type": "null"}]}}, "a"),
    "integer": {"type": "integer", "minimum": -12, "maximum": 345},
    "integer above": {"type": "integer", "exclusiveMinimum": 7, "maximum": 1000},
    "multiple": {"type": "integer", "minimum": 0, "maximum": 1000, "multipleOf": 7},
    "string": {"type": "string", "minLength": 3, "maxLength": 9},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    "pattern within": {"type": "string", "pattern": "[0-9]x[0-9]", "maxLength": 10},
    "pattern of length": {"type": "string", "pattern": "^[ab]*$", "minLength": 4, "maxLength": 8},
    "date": {"type": "string", "format": "date"},
    "time": {"type": "string", "format": "date-time"},
    "uuid": {"type": "string", "format": "uuid"},
    "address": {"type": "string", "format": "ipv4"},
    "unicode keys": _object({"größe": _DIGIT, "名前": _WORD, "😀": {"type": "boolean"}}, "größe", "名前", "😀"),
    "unicode values": {"enum": ["naïve", "日本語", "Ωμέγα", "🌊🌊"]},
    "escapes": {"enum": ['say "hi"', "back\\slash", "line\nend", "tab\tbed", "null\u0000byte"]},
    "array": {"type": "array", "items": _DIGIT, "minItems": 2, "maxItems": 5},
    "empty array": {"type": "array", "items": _DIGIT, "maxItems": 0},
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": "boolean"}, _DIGIT, _WORD],
        "minItems": 3,
        "items": False,
    },
    "array of arrays": {"type": "array", "items": {"type": "array", "items": _DIGIT, "maxItems": 2}, "maxItems": 3},
    "anyOf": {"anyOf": [_object({"a": _DIGIT}, "a"), _object({"b": _WORD}, "b"), _DIGIT]},
    "oneOf": {
        "oneOf": [
            _object({"kind": {"const": "circle"}, "r": _DIGIT}, "kind", "r"),
            _object({"kind": {"const": "square"}, "a": _DIGIT}, "kind", "a"),
        ]
    },
    "allOf": {
        "allOf": [
            {"type": "object", "properties": {"a": _DIGIT}, "required": ["a"]},
            {"type": "object", "properties": {"b": _DIGIT}, "required": ["b"]},
        ],
        "additionalProperties": False,
        "properties": {"a": True, "b": True},
    },
    "references": {
        "$defs": {"money": _object({"amount": _DIGIT, "unit": {"enum": ["EUR", "USD"]}}, "amount", "unit")},
        **_object({"price": {"$ref": "#/$defs/money"}, "fee": {"$ref": "#/$defs/money"}}, "price", "fee"),
    },
    "reference narrowed": {"$defs": {"s": {"type": "string", "maxLength": 6}}, "$ref": "#/$defs/s", "minLength": 5},
    "invoice": _object(
        {
            "number": {"type": "string", "pattern": "^R[0-9]{4}$"},
            "paid": {"type": "boolean"},
            "lines": {
                "type": "array",
                "minItems": 1,
                "maxItems": 3,
                "items": _object(
                    {"text": _WORD, "count": _DIGIT, "price": {"type": "integer", "minimum": 0, "maximum": 999}},
                    "text",
                    "count",
                ),
            },
        },
        "number",
        "paid",
        "lines",
    ),
}

_UNBOUNDED: dict[str, dict[str, Any]] = {
    "linked list": {
        "$defs": {
            "node": _object({"v": _DIGIT, "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}}, "v", "next")
        },
        "$ref": "#/$defs/node",
    },
    "tree": _object({"v": _DIGIT, "children": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}}, "v"),
    "number": {"type": "number", "minimum": -1.5, "maximum": 2.5},
    "number between": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "additional properties": {
        "type": "object",
        "properties": {"id": _DIGIT},
        "required": ["id"],
        "additionalProperties": {"type": "boolean"},
    },
    "required but not described": {"type": "object", "required": ["x"], "additionalProperties": _DIGIT},
    "any value": {},
    "any string": {"type": "string"},
    "any number": {"type": "number"},
}

_REGEXES = {
    "iso date": r"[12][0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])",
    "phone": r"\+[0-9]{1,3} \([0-9]{3}\) [0-9]{3}-[0-9]{4}",
    "alternatives": r"(yes|no|maybe)( please)?|never",
    "anchored": r"^[a-f0-9]{8}$",
    "unicode ranges": r"[α-ω]{1,4} [A-ZÀ-ÖØ-Þ][^ -~]{0,3}",
    "unicode digits": r"\d{2,5}",
    "ignoring case": r"(?i:abc){1,2}",
    "hex colour": r"#([0-9a-fA-F]{3}){1,2}",
    "email": r"[a-z0-9._]{1,12}@[a-z]{1,10}\.(com|org|net)",
    "slashes and quotes": r'https?://[a-z]{1,8}/"[^"\n/]{1,5}"',
    "lines": r"(- [a-z]{1,5}\n){1,3}",
}

_CHOICES = {
    "two": ["positive", "negative"],
    "one": ["only this"],
    "prefixes": ["a", "ab", "abc", "abcd"],
    "odd characters": ['"quoted"', "back\\slash", "line\nend", "日本", "🌊", " leading", "<|im_end|>"],
    "many": [f"number {number}" for number in range(1000)],
}

_ARITHMETIC = """
start: sum
sum: product (("+" | "-") product)*
product: atom (("*" | "/") atom)*
atom: NUMBER | "(" sum ")"
NUMBER: /[1-9][0-9]{0,2}/
"""

_CSV = r"""
start: field ("," field){0,3}
field: PLAIN | QUOTED
PLAIN: /[a-z0-9 ]{1,6}/
QUOTED: /"([a-z, ]|""){0,6}"/
"""

_COMMAND_GBNF = """
root ::= verb " " side " " number
verb ::= "move" | "turn"
side ::= "left" | "right"
number ::= [0-9] [0-9]?
"""

_CALL = """
start: ("add" | "sub") "(" arguments ")"
arguments: %json {
  "type": "object", "properties": {"x": {"type": "integer", "maximum": 99, "minimum": 0}},
  "required": ["x"], "additionalProperties": false, "x-guidance": {"whitespace_flexible": false}
}
"""

STRUCTURED_CASES = [
    StructuredCase("json_object", {"response_format": {"type": "json_object"}}, _check_any_object, is_bounded=False),
    *(schema_case(name, schema) for name, schema in _SCHEMAS.items()),
    *(schema_case(name, schema, is_bounded=False) for name, schema in _UNBOUNDED.items()),
    *(regex_case(name, pattern) for name, pattern in _REGEXES.items()),
    *(choice_case(f"choice of {name}", choices) for name, choices in _CHOICES.items()),
    grammar_case("arithmetic", _ARITHMETIC, _check_arithmetic, is_bounded=False),
    grammar_case("csv line", _CSV, _check_csv),
    grammar_case("gbnf command", _COMMAND_GBNF, _check_command),
    grammar_case("call with json", _CALL, _check_call),
]
