"""Calls in tags, as in `<function=name><parameter=key>value</parameter></function>`.

A value is text, unless the tool's schema or the tag says otherwise.
"""

import json
import re
from typing import NamedTuple

from server.output_parsers.families.tool_call_syntax import ToolCallSyntax
from server.output_parsers.reading.argument_types import ANY_BUT_TEXT, TEXT, ArgumentType, argument_type
from server.output_parsers.reading.tool_call_reader import CharCoroutine, NotAToolCall, ToolCallReader

MAX_VALUE_CHARS = 1 << 16  # of an argument that is no text, and so is emitted whole
_SAYS_TEXT = re.compile(r'\bstring="(true|false)"')


class Tags(NamedTuple):
    """The tags of one family."""

    call: str  # what a call's name follows
    call_end: str
    argument: str  # what an argument's name follows
    argument_end: str
    is_padded: bool = False  # whether a line end next to either tag of a value is no part of it


QWEN = Tags("<function=", "</function>", "<parameter=", "</parameter>", is_padded=True)
MINIMAX_TAGS = Tags('<invoke name="', "</invoke>", '<parameter name="', "</parameter>")
_DSML = "\uff5cDSML\uff5c"
DEEPSEEK_TAGS = Tags(f'<{_DSML}invoke name="', f"</{_DSML}invoke>", f'<{_DSML}parameter name="', f"</{_DSML}parameter>")


def qwen_call(text: ToolCallReader) -> CharCoroutine:
    """`name>`, then the arguments or an object in JSON, then `</function>`."""
    return (yield from tagged_call(text, QWEN))


def minimax(text: ToolCallReader) -> CharCoroutine:
    return (yield from _block(text, MINIMAX_TAGS, "</minimax:tool_call>"))


def seed_oss(text: ToolCallReader) -> CharCoroutine:
    return (yield from _block(text, QWEN, "</seed:tool_call>"))


def deepseek_v32(text: ToolCallReader) -> CharCoroutine:
    return (yield from _block(text, DEEPSEEK_TAGS, text.begin.replace("<", "</")))


def _block(text: ToolCallReader, tags: Tags, end: str) -> CharCoroutine:
    """Calls up to the tag that ends all of them."""
    while (yield from text.one_of((tags.call, end), (yield from text.skip_space()))) != end:
        yield from tagged_call(text, tags)
    return ""


def tagged_call(text: ToolCallReader, tags: Tags) -> CharCoroutine:
    """One call from its name to its closing tag."""
    name, _ = _attributes((yield from text.until(">")), tags.call)
    text.start(name)
    char = yield from text.skip_space()
    if char == "{":
        yield from text.arguments(char)
        return (yield from text.literal(tags.call_end, (yield from text.skip_space())))
    text.emit("{")
    comma = ""
    tags_here = (tags.argument, tags.argument_end, tags.call_end)
    while (tag := (yield from text.one_of(tags_here, char))) != tags.call_end:
        if tag == tags.argument_end:  # once more: some models write it twice
            char = yield from text.skip_space()
            continue
        key, rest = _attributes((yield from text.until(">")), tags.argument)
        text.emit(f"{comma}{json.dumps(key, ensure_ascii=False)}: ")
        comma = ", "
        said = _SAYS_TEXT.search(rest)
        kind = argument_type(text.schema_of(name), key)
        if said is not None:
            kind = TEXT if said[1] == "true" else ANY_BUT_TEXT
        yield from tagged_value(text, kind, tags.argument_end, is_padded=tags.is_padded)
        char = yield from text.skip_space()
    text.emit("}")
    text.end()
    return ""


def _attributes(tag: str, begin: str) -> tuple[str, str]:
    """The name in a tag, which may stand in quotation marks, and what follows it."""
    if not begin.endswith('"'):
        return tag.strip(), ""
    name, _, rest = tag.partition('"')
    return name.strip(), rest


def tagged_value(text: ToolCallReader, kind: ArgumentType, end: str, *, is_padded: bool) -> CharCoroutine:
    """A value up to its closing tag. Texts, objects and arrays are emitted as they come, other values whole."""
    ends = (f"\n{end}", end) if is_padded else (end,)
    char = yield
    if is_padded and char == "\n":
        char = yield
    if "string" not in kind.types and kind.values is None:
        before = ""
        while char in " \t\r\n":
            before += char
            char = yield
        if (char == "{" and "object" in kind.types) or (char == "[" and "array" in kind.types):
            yield from text.json_value(char)
            return (yield from text.literal(end, (yield from text.skip_space())))
        char = before + char
    if kind.is_text and kind.values is None:
        return (yield from text.quoted(ends, char))
    value = char
    while (found := next((end for end in ends if value.endswith(end)), None)) is None:
        if len(value) > MAX_VALUE_CHARS:
            raise NotAToolCall
        value += yield
    text.emit(kind.to_json(value.removesuffix(found)))
    return ""


MINIMAX = ToolCallSyntax(
    "minimax_m2", ("<minimax:tool_call>",), minimax,
    template_marks=("<minimax:tool_call>",), other_markers=("</minimax:tool_call>",), strays=("</minimax:tool_call>",),
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
)  # fmt: skip
