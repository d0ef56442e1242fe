"""Lark grammars, in llguidance's variant, of calls in tags: names, their order, and values of the types in schemas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import orjson

from server.output_parsers.families.glm import GLM
from server.output_parsers.families.json_formats import QWEN_CODER
from server.output_parsers.families.tagged_calls import (
    DEEPSEEK_TAGS,
    DEEPSEEK_V32,
    MINIMAX,
    MINIMAX_TAGS,
    QWEN,
    SEED_OSS,
    Tags,
)
from server.output_parsers.families.tool_call_syntax import ToolCallSyntax
from server.output_parsers.reading.argument_types import ArgumentType, argument_type
from server.protocol.tools import StrictCalls

Part: TypeAlias = str | dict[str, Any]  # text in Lark, or a JSON schema
_GLM_TAGS = Tags("", "</tool_call>", "<arg_key>", "</arg_value>", "</tool_call>")
_SHAPES: Mapping[str, tuple[Tags, str, str]] = {  # with what stands between a name and what follows it
    QWEN_CODER.name: (QWEN, ">", ">"),
    SEED_OSS.name: (QWEN, ">", ">"),
    MINIMAX.name: (MINIMAX_TAGS, '">', '">'),
    DEEPSEEK_V32.name: (DEEPSEEK_TAGS, '">', '" string="{}">'),
    GLM.name: (_GLM_TAGS, "\n", "</arg_key>\n<arg_value>"),
}
_RULES = "SPACES: /[ \\t\\r\\n]{1,8}/\nKEY: /[A-Za-z0-9_.$-]{1,64}/\n"
_REFERENCES = (b"#/$defs/", b"#/definitions/")


def has_tags(syntax: ToolCallSyntax) -> bool:
    """Whether calls in a syntax have tags, whose contents `tagged_lark` describes."""
    return syntax.name in _SHAPES


def tagged_lark(syntax: ToolCallSyntax, calls: StrictCalls) -> list[Part] | None:
    """The grammar of what follows the marker, which it reads too where there are several; None for other syntaxes."""
    shape = _SHAPES.get(syntax.name)
    if shape is None:
        return None
    tags, behind_name, behind_key = shape
    call = f"({' | '.join(f'call{index}' for index in range(len(calls.tools)))})"
    most = f"{{1,{calls.most}}}" if calls.most > 1 else ""
    match syntax.name:
        case QWEN_CODER.name:
            outer, inner = (_quoted(begin) for begin in syntax.begins)
            start = f"{outer} SPACES? {inner} {call} SPACES? {_quoted('</tool_call>')} | {inner} {call}"
        case GLM.name:
            start = call
        case DEEPSEEK_V32.name:
            blocks = (f"{_quoted(block)} (SPACES? {_quoted(tags.call)} {call}){most} SPACES? {_quoted(_closing(block))}"
                      for block in syntax.begins)  # fmt: skip
            start = " | ".join(blocks)
        case _:
            start = f"(SPACES? {_quoted(tags.call)} {call}){most} SPACES? {_quoted(_closing(syntax.begins[0]))}"
    parts: list[Part] = [f"start: {start}\n{_RULES}text[suffix={_quoted(tags.argument_end)}]: /(?s:.*)/\n"]
    key_end = _quoted(behind_key.format("true"))
    parts.append(f"other: {_quoted(tags.argument)} KEY {key_end} text SPACES?\n")
    for index, tool in enumerate(calls.tools):
        schema = calls.arguments_of(tool)
        rules = list(_arguments(f"arg{index}", schema, tags, behind_key))
        names = " ".join(name for name, _ in rules)
        name = f"{_quoted(tool.name + behind_name)} SPACES?"
        parts.append(f"call{index}: {name} {names} {_quoted(tags.call_end)}\n")
        for _, rule in rules:
            parts += rule
    return parts


def read_markers(syntax: ToolCallSyntax) -> Mapping[bytes, bytes]:
    """The markers, and of each what the grammar of `tagged_lark` reads of it too: all of it where it matters which."""
    return {begin.encode(): begin.encode() if len(syntax.begins) > 1 else b"" for begin in syntax.begins}


def _closing(tag: str) -> str:
    return tag.replace("<", "</", 1)


def _quoted(text: str) -> str:
    return orjson.dumps(text).decode()


def _arguments(prefix: str, schema: dict[str, Any], tags: Tags, behind_key: str) -> Iterator[tuple[str, list[Part]]]:
    """The uses and the rules of a call's arguments, in the order of the schema."""
    properties = schema.get("properties")
    is_composed = any(key in schema for key in ("$ref", "anyOf", "oneOf", "allOf"))
    if not isinstance(properties, dict) or is_composed:
        yield "other*", []
        return
    required = schema.get("required")
    for at, (key, part) in enumerate(properties.items()):
        name = f"{prefix}_{at}"
        value, is_text = _value(part, argument_type(schema, key), schema, tags)
        begin = f"{_quoted(tags.argument + key + behind_key.format('true' if is_text else 'false'))}"
        is_required = isinstance(required, list) and key in required
        yield name if is_required else f"{name}?", [f"{name}: {begin} ", *value, " SPACES?\n"]
    if schema.get("additionalProperties"):
        yield "other*", []


def _value(part: Any, kind: ArgumentType, root: dict[str, Any], tags: Tags) -> tuple[list[Part], bool]:
    """What follows the tag of an argument, with its closing tag, and whether that is any text."""
    pad = '"\\n"?' if tags.is_padded else ""
    end = f"{pad} {_quoted(tags.argument_end)}"
    if kind.values is not None:
        words = [value if isinstance(value, str) else orjson.dumps(value).decode() for value in kind.values]
        words += ["null"] if "null" in kind.types else []
        if all(word and "<" not in word for word in words):
            return [f"{pad} ({' | '.join(map(_quoted, dict.fromkeys(words)))}) {end}"], "string" in kind.types
        return ["text"], True
    if "string" in kind.types or not isinstance(part, dict) or not _is_local(part):
        return ["text"], "string" in kind.types
    definitions: dict[str, Any] = {name: root[name] for name in ("$defs", "definitions") if name in root}
    others = [f'"{word}"' for kind_of, words in (("boolean", ("True", "False")), ("null", ("None",)))
              if kind_of in kind.types for word in words]  # fmt: skip
    also = "".join(f" | {word}" for word in others)
    return [f"{pad} (%json ", {**definitions, **part}, f"{also}) {end}"], False


def _is_local(part: dict[str, Any]) -> bool:
    """Whether references in a part of a schema point to definitions alone, which go along with it."""
    written = orjson.dumps(part)
    return written.count(b'"$ref"') == sum(written.count(b'"$ref":"' + begin) for begin in _REFERENCES)
