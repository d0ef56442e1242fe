"""Calls in tags, as in `<function=name><parameter=key>value</parameter></function>`.

A value is text, unless the tool's schema or the tag says otherwise.
"""

import json
import re
from collections.abc import Generator
from typing import Any, NamedTuple

from server.output_parsers.families.tool_call_syntax import ToolCallSyntax
from server.output_parsers.reading.argument_types import (
    ANY_BUT_TEXT,
    TEXT,
    ArgumentType,
    argument_type,
    has_argument,
)
from server.output_parsers.reading.tool_call_reader import (
    MAX_NAME_CHARS,
    CharCoroutine,
    NotAToolCall,
    TextEnded,
    ToolCallReader,
)

MAX_VALUE_CHARS = 1 << 16  # of an argument that is no text, and so is emitted whole
_SAYS_TEXT = re.compile(r'\bstring="(true|false)"')


class Tags(NamedTuple):
    """The tags of one family."""

    call: str  # what a call's name follows
    call_end: str
    argument: str  # what an argument's name follows
    argument_end: str
    all_end: str  # ends all calls
    is_padded: bool = False  # whether a line end next to either tag of a value is no part of it


QWEN = Tags("<function=", "</function>", "<parameter=", "</parameter>", "</tool_call>", is_padded=True)
ATTRIBUTES = Tags(
    '<function name="', "</function>", '<parameter name="', "</parameter>", "</tool_call>", is_padded=True
)
SEED_TAGS = QWEN._replace(all_end="</seed:tool_call>")
MINIMAX_TAGS = Tags('<invoke name="', "</invoke>", '<parameter name="', "</parameter>", "</minimax:tool_call>")
_DSML = "\uff5cDSML\uff5c"
DEEPSEEK_TAGS = Tags(
    f'<{_DSML}invoke name="', f"</{_DSML}invoke>", f'<{_DSML}parameter name="', f"</{_DSML}parameter>",
    f"</{_DSML}tool_calls>",
)  # fmt: skip


def qwen_call(text: ToolCallReader) -> CharCoroutine:
    """`name>`, then the arguments or an object in JSON, then `</function>`; returns `</tool_call>` if it has come."""
    return (yield from tagged_calls(text, QWEN))


def tagged_calls(text: ToolCallReader, tags: Tags) -> CharCoroutine:
    """A call as `tagged_call` reads it, and those behind it where the tags that close them are forgotten."""
    while (tag := (yield from tagged_call(text, tags))) == tags.call:
        pass
    return tag


def minimax(text: ToolCallReader) -> CharCoroutine:
    return (yield from _block(text, MINIMAX_TAGS))


def seed_oss(text: ToolCallReader) -> CharCoroutine:
    return (yield from _block(text, SEED_TAGS))


def deepseek_v32(text: ToolCallReader) -> CharCoroutine:
    if text.begin == DEEPSEEK_TAGS.call:
        return (yield from _block(text, DEEPSEEK_TAGS))
    return (yield from _block(text, DEEPSEEK_TAGS._replace(all_end=text.begin.replace("<", "</"))))


def _block(text: ToolCallReader, tags: Tags) -> CharCoroutine:
    """Calls up to the tag that ends all of them. Some models forget the tag that begins them, or write it twice."""
    tag = text.begin
    while tag != tags.all_end:
        if tag != tags.call:
            tag = yield from text.one_of((text.begin, tags.call, tags.all_end), (yield from text.skip_space()))
        elif text.has_started or text.begin != tags.call:
            tag = yield from tagged_call(text, tags)
        else:
            tag = yield from tagged_call(text, tags, only_known=True)
    return text.only_if_started()


def tagged_call(text: ToolCallReader, tags: Tags, *, only_known: bool = False) -> CharCoroutine:
    """One call from its name to its closing tag, which some models forget.

    Returns the tag behind it if that has come already: of the next call, or of the end of all; else nothing.
    """
    name, rest = _attributes((yield from text.until(">")), tags.call)
    if only_known and not text.is_known(name):
        raise NotAToolCall
    if rest.endswith("/"):  # a tag that closes itself
        text.start(name)
        text.emit("{}")
        text.end()
        return ""
    ends = (tags.call_end, tags.all_end, tags.call)
    char = yield from text.skip_space()
    if char not in "{<":  # a text that speaks of the tag
        raise NotAToolCall
    text.start(name)
    if char == "{":
        yield from text.arguments(char)
        tag = yield from text.one_of(ends, (yield from text.skip_space()))
        return "" if tag == tags.call_end else tag
    text.emit("{")
    comma = ""
    any_tag = (tags.argument, tags.argument_end, *ends)
    tag = yield from text.one_of(any_tag, char)
    while tag not in ends:
        if tag == tags.argument_end:  # once more: some models write it twice
            tag = yield from text.one_of(any_tag, (yield from text.skip_space()))
            continue
        inner = tag.removeprefix(tags.argument).removesuffix(">") or (yield from text.until(">"))
        key, rest = _attributes(inner, tags.argument)
        text.emit(f"{comma}{json.dumps(key, ensure_ascii=False)}: ")
        comma = ", "
        said = _SAYS_TEXT.search(rest)
        kind = argument_type(text.schema_of(name), key)
        if said is not None:
            kind = TEXT if said[1] == "true" else ANY_BUT_TEXT
        tag = yield from tagged_value(text, kind, Ends(tags, text.schema_of(name)))
        if tag == tags.argument_end:
            tag = yield from text.one_of(any_tag, (yield from text.skip_space()))
    text.emit("}")
    text.end(tag if tag == tags.call else "")
    return "" if tag == tags.call_end else tag


def _attributes(tag: str, begin: str) -> tuple[str, str]:
    """The name in a tag, which may stand in quotation marks, and what follows it."""
    if not begin.endswith('"'):
        return tag.strip(), ""
    name, _, rest = tag.partition('"')
    return name.strip(), rest


class Ends:
    """Finds the tag that ends a value. Where its own is forgotten, that is the next argument's, or those of the call.

    A value may have such tags in it. So the next argument's ends it only with a name that the schema has, and the
    call's only where the next call, or the end of all, follows.
    """

    def __init__(self, tags: Tags, schema: Any) -> None:
        self.tags = tags
        self._schema = schema

    def read(self, char: str) -> Generator[None, str, tuple[str, str]]:
        """The tag that ends the value here, where `char` has come, or nothing; and what has been read."""
        tags = self.tags
        seen = char
        if char == "\n":
            seen += yield
        begin = len(seen) - 1
        own = (tags.argument_end, tags.argument, tags.call_end)
        while (tag := seen[begin:]) not in own:
            if not any(each.startswith(tag) for each in own):
                return "", seen
            seen += yield
        if tag == tags.argument_end:
            return tag, seen
        if tag == tags.argument:
            while not seen.endswith((">", "<", "\n")) and len(seen) - begin < MAX_NAME_CHARS:
                seen += yield
            key, _ = _attributes(seen[begin + len(tag) : -1], tag)
            return (seen[begin:] if seen[-1] == ">" and has_argument(self._schema, key) else ""), seen
        try:
            while (char := (yield)) in " \t\r\n":
                seen += char
        except TextEnded:
            return tags.all_end, seen
        begin = len(seen)
        seen += char
        ends = (tags.all_end, tags.call)
        while (tag := seen[begin:]) not in ends:
            if not any(each.startswith(tag) for each in ends):
                return "", seen
            seen += yield
        return tag, seen


def tagged_value(text: ToolCallReader, kind: ArgumentType, ends: Ends) -> CharCoroutine:
    """A value up to the tag that ends it, which is returned.

    Texts, objects and arrays are emitted as they come, other values whole.
    """
    tags = ends.tags
    char = yield
    if tags.is_padded and char == "\n":
        char = yield
    if "string" not in kind.types and kind.values is None:
        before = ""
        while char in " \t\r\n":
            before += char
            char = yield
        if (char == "{" and "object" in kind.types) or (char == "[" and "array" in kind.types):
            yield from text.json_value(char)
            here = (tags.argument_end, tags.argument, tags.call_end, tags.all_end, tags.call)
            return (yield from text.one_of(here, (yield from text.skip_space())))
        text.again(before + char)
        char = yield
    is_text = kind.is_text and kind.values is None
    text.emit('"' if is_text else "")
    value = ""  # of what is no text
    while True:
        if char == "<" or (char == "\n" and tags.is_padded):
            tag, seen = yield from ends.read(char)
            if tag:
                break
            char = seen[0]
            text.again(seen[1:])
        if is_text:
            text.emit(json.dumps(char, ensure_ascii=False)[1:-1])
        elif len(value) > MAX_VALUE_CHARS:
            raise NotAToolCall
        else:
            value += char
        char = yield
    text.emit('"' if is_text else kind.to_json(value))
    return tag


MINIMAX = ToolCallSyntax(
    "minimax_m2", ("<minimax:tool_call>",), minimax,
    template_marks=("<minimax:tool_call>",), other_markers=("</minimax:tool_call>",), strays=("</minimax:tool_call>",),
    inner_begins=(MINIMAX_TAGS.call,),
)  # fmt: skip
SEED_OSS = ToolCallSyntax(
    "seed_oss", ("<seed:tool_call>",), seed_oss,
    template_marks=("<seed:tool_call>",), other_markers=("</seed:tool_call>",), strays=("</seed:tool_call>",),
)  # fmt: skip
_BLOCKS = tuple(f"<{_DSML}{name}>" for name in ("function_calls", "tool_calls"))
_BLOCK_ENDS = tuple(block.replace("<", "</") for block in _BLOCKS)
DEEPSEEK_V32 = ToolCallSyntax(
    "deepseek_v32", _BLOCKS, deepseek_v32,
    template_marks=(_DSML,), other_markers=(_DSML, *_BLOCK_ENDS), strays=_BLOCK_ENDS,
    inner_begins=(DEEPSEEK_TAGS.call,),
)  # fmt: skip
