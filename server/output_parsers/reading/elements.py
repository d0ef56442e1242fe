"""Reads arguments that are elements with their names as tags: `<city>Oslo</city><days><item>1</item></days>`."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

from server.output_parsers.reading.argument_types import ArgumentType, argument_type, has_argument
from server.output_parsers.reading.markers import overlap
from server.output_parsers.reading.tool_call_reader import MAX_NAME_CHARS, CharCoroutine, NotAToolCall, ToolCallReader

MAX_DEPTH = 32  # of elements within each other
MAX_VALUE_CHARS = 1 << 16  # of an argument that is no text, and so is emitted whole
_ITEM = "item"  # the name of the elements of a list
_IN_NAMES = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.$")


class ElementReader:
    """Reads elements from the text of a call.

    Args:
        mark: a text before each tag; nothing where tags stand alone.
        only_known: whether elements that the schema does not have mean that the text is no call.
    """

    def __init__(self, text: ToolCallReader, mark: str = "", *, only_known: bool = False) -> None:
        self._text = text
        self._mark = mark
        self._only_known = only_known
        self.num_arguments = 0

    def arguments(self, schema: Any, end: str) -> CharCoroutine:
        """The elements up to `end`, which begins with the mark; emitted as the arguments of a call that has started.

        Texts are emitted as they come, other values whole.
        """
        text = self._text
        text.emit("{")
        comma = ""
        while True:
            char = yield from text.skip_space()
            name = yield from self._tag(char, end)
            if not name:
                break
            if self._only_known and not has_argument(schema, name):
                raise NotAToolCall
            self.num_arguments += 1
            text.emit(f"{comma}{json.dumps(name, ensure_ascii=False)}: ")
            comma = ", "
            kind = argument_type(schema, name)
            closing = f"</{name}>"
            if kind.is_text and kind.values is None:
                yield from text.quoted((f"{self._mark}{closing}", closing) if self._mark else (closing,))
            elif kind.types & {"object", "array"}:
                value = yield from self._value(_part(schema, name), name, 0)
                text.emit(kind.to_json(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
            else:
                text.emit(kind.to_json((yield from self._leaf(name, (yield)))))
        text.emit("}")
        text.end()
        return ""

    def attributes(self, schema: Any, name: str) -> CharCoroutine:
        """`key="value" … />`, behind an opening tag's name and white space; emitted at once, as `arguments` has it."""
        text = self._text
        values: list[str] = []
        char = yield from text.skip_space()
        while char not in "/>":
            key = (yield from text.until("=", char)).strip()
            quote = yield
            if quote not in "\"'" or not has_argument(schema, key):
                raise NotAToolCall
            value: list[str] = []
            while (char := (yield)) != quote:
                value.append(char)
                if len(value) > MAX_VALUE_CHARS:
                    raise NotAToolCall
            written = argument_type(schema, key).to_json("".join(value))
            values.append(f"{json.dumps(key, ensure_ascii=False)}: {written}")
            char = yield from text.skip_space()
        if char == "/":
            yield from text.literal(">")
        else:
            yield from text.literal(f"</{name}>", (yield from text.skip_space()))
        self.num_arguments = len(values)
        text.emit(f"{{{', '.join(values)}}}")
        text.end()
        return ""

    def _tag(self, char: str, end: str) -> CharCoroutine:
        """The name in an opening tag, whose first character, or its mark's, is `char`; nothing where `end` comes.

        Some models forget the mark.
        """
        mark = self._mark if char != "<" else ""
        seen, end = char, end if mark else end.removeprefix(self._mark)
        while end.startswith(seen):
            if seen == end:
                return ""
            seen += yield
        opening = f"{mark}<"
        while not seen.startswith(opening):
            if not opening.startswith(seen):
                raise NotAToolCall
            seen += yield
        name = seen[len(opening) :]
        if name and name[-1] not in _IN_NAMES:
            raise NotAToolCall
        while (char := (yield)) in _IN_NAMES:
            name += char
            if len(name) > MAX_NAME_CHARS:
                raise NotAToolCall
        if char != ">" or not name:
            raise NotAToolCall
        return name

    def _leaf(self, name: str, char: str) -> CharCoroutine:
        """The text of an element without others in it, whose first character is `char`, up to its closing tag."""
        closing = f"</{name}>"
        pieces, held = [], char
        num_chars = 0
        while not held.endswith(closing):
            num_held = max(overlap(held, closing), overlap(held, self._mark + closing))
            pieces.append(held[: len(held) - num_held])
            num_chars += len(pieces[-1])
            if num_chars > MAX_VALUE_CHARS:
                raise NotAToolCall
            held = held[len(held) - num_held :] + (yield)
        return "".join((*pieces, held)).removesuffix(closing).removesuffix(self._mark)

    def _value(self, schema: Any, name: str, depth: int) -> Generator[None, str, Any]:
        """The value of an element whose opening tag has come: a mapping or a list of elements, or a text."""
        if depth > MAX_DEPTH:
            raise NotAToolCall
        before, char = "", (yield)
        while char in " \t\r\n":
            before += char
            char = yield
        if char not in ("<", self._mark[:1]):
            return (yield from self._leaf(name, before + char))
        names: dict[str, Any] = {}
        items: list[Any] = []
        while inner := (yield from self._tag(char, f"{self._mark}</{name}>")):
            if inner == _ITEM and not names:
                part = schema.get("items") if isinstance(schema, dict) else None
                items.append(_typed((yield from self._value(part, inner, depth + 1)), part))
            else:
                part = _part(schema, inner)
                names[inner] = _typed((yield from self._value(part, inner, depth + 1)), part)
            char = yield from self._text.skip_space()
        if not items and not names and "array" in _type_of(schema).types:
            return items
        return items or names


def _part(schema: Any, name: str) -> Any:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return properties.get(name) if isinstance(properties, dict) else None


def _typed(value: Any, schema: Any) -> Any:
    """A value within another one, where texts are what the schema says."""
    return json.loads(_type_of(schema).to_json(value)) if isinstance(value, str) else value


def _type_of(schema: Any) -> ArgumentType:
    return argument_type({"properties": {"value": schema}}, "value")
