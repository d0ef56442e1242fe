"""Calls as objects in JSON with a name and arguments, behind a marker or as the whole of an answer."""

from server.output_parsers.families.pythonic_calls import python_arguments, python_call
from server.output_parsers.families.tagged_calls import ATTRIBUTES, QWEN, Tags, qwen_call, tagged_call
from server.output_parsers.families.tool_call_syntax import ToolCallSyntax
from server.output_parsers.reading.tool_call_reader import MAX_NAME_CHARS, CharCoroutine, NotAToolCall, ToolCallReader

_FENCE = "```"


def hermes(text: ToolCallReader) -> CharCoroutine:
    """`{…}</tool_call>`, or Qwen Coder's `<function=…>…</function></tool_call>`. Some models write the tag twice."""
    char = yield from text.skip_space()
    while char == "<":
        tag = yield from text.one_of((QWEN.call, ATTRIBUTES.call, text.begin), char)
        if tag != text.begin:
            return (yield from _functions(text, QWEN if tag == QWEN.call else ATTRIBUTES))
        char = yield from text.skip_space()
    if char.isalpha():
        yield from _named(text, char)
    elif char == _FENCE[0]:  # small models put the object in one
        yield from text.literal(_FENCE, char)
        yield from text.until("\n")
        yield from text.call_object((yield from text.skip_space()))
        yield from text.literal(_FENCE, (yield from text.skip_space()))
    else:
        yield from text.call_object(char)
    return (yield from text.literal("</tool_call>", (yield from text.skip_space())))


def _functions(text: ToolCallReader, tags: Tags) -> CharCoroutine:
    """Calls in tags, of which the first has come, up to `</tool_call>`."""
    tag = tags.call
    while tag == tags.call:
        tag = yield from tagged_call(text, tags)
        if not tag:
            tag = yield from text.one_of((tags.call, tags.all_end), (yield from text.skip_space()))
    return ""


def _named(text: ToolCallReader, char: str) -> CharCoroutine:
    """The name of a tool and an object, which may stand in brackets, or arguments in Python."""
    name = ""
    while char not in "({ \r\n":
        name += char
        if not text.begins_name(name):
            raise NotAToolCall
        char = yield
    if not text.is_known(name):
        raise NotAToolCall
    char = char if char in "({" else (yield from text.skip_space())
    is_bracketed = char == "("
    if is_bracketed:
        char = yield from text.skip_space()
        if char != "{":
            text.again(char)
            return (yield from python_arguments(text, name, "("))
    if char != "{":
        raise NotAToolCall
    text.start(name)
    yield from text.arguments(char)
    return (yield from text.literal(")", (yield from text.skip_space()))) if is_bracketed else ""


def qwen_coder(text: ToolCallReader) -> CharCoroutine:
    """As `hermes`; some models omit the outer tag."""
    if text.begin == "<function=":
        return (yield from qwen_call(text))
    return (yield from hermes(text))


def granite(text: ToolCallReader) -> CharCoroutine:
    """An array of calls, or one call with its closing tag."""
    char = yield from text.skip_space()
    if char == "[":
        return (yield from text.call_objects(char))
    yield from text.call_object(char)
    return (yield from text.literal("</tool_call>", (yield from text.skip_space())))


def phi(text: ToolCallReader) -> CharCoroutine:
    return (yield from text.call_objects((yield from text.skip_space())))


def mistral(text: ToolCallReader) -> CharCoroutine:
    """An array of calls; newer models write `name[ARGS]{…}` for each, some with `[CALL_ID]` and an id in between.

    An object alone and a name without `[ARGS]` are calls, too.
    """
    char = yield from text.skip_space()
    if char == "[":
        return (yield from text.call_objects(char))
    if char == "{":
        return (yield from text.call_object(char))
    name = ""
    while char not in "[{":
        name += char
        if len(name) > MAX_NAME_CHARS:
            raise NotAToolCall
        char = yield
    if char == "{":
        if not text.is_known(name):
            raise NotAToolCall
        text.start(name)
        return (yield from text.arguments(char))
    char = yield
    if char == "C":
        yield from text.literal("CALL_ID]", char)
        yield from text.until("[")
        char = yield
    yield from text.literal("ARGS]", char)
    text.start(name.strip())
    return (yield from text.arguments((yield from text.skip_space())))


def llama(text: ToolCallReader) -> CharCoroutine:
    """An object whose brace has come already, or that a control token has announced; or Python's `name.call(…)`."""
    char = "{" if text.begin == "{" else (yield from text.skip_space())
    return (yield from text.call_object(char) if char == "{" else python_call(text, char))


def array(text: ToolCallReader) -> CharCoroutine:
    """An array, whose bracket has come already."""
    return (yield from text.call_objects("["))


def nemotron(text: ToolCallReader) -> CharCoroutine:
    yield from text.call_objects((yield from text.skip_space()))
    return (yield from text.literal("</TOOLCALL>", (yield from text.skip_space())))


def hunyuan(text: ToolCallReader) -> CharCoroutine:
    yield from text.call_objects((yield from text.skip_space()))
    return (yield from text.literal("</tool_calls>", (yield from text.skip_space())))


def cohere(text: ToolCallReader) -> CharCoroutine:
    """An array of objects with `tool_call_id`, `tool_name` and `parameters`."""
    yield from text.call_objects((yield from text.skip_space()))
    return (yield from text.literal("<|END_ACTION|>", (yield from text.skip_space())))


def apertus(text: ToolCallReader) -> CharCoroutine:
    """`[{"name": {…}}, …]`: each object has the name of a tool as its only key."""
    yield from text.literal("[", (yield from text.skip_space()))
    char = yield from text.skip_space()
    while char != "]":
        yield from text.literal("{", char)
        name = yield from text.string((yield from text.skip_space()))
        yield from text.literal(":", (yield from text.skip_space()))
        text.start(name)
        yield from text.arguments((yield from text.skip_space()))
        yield from text.literal("}", (yield from text.skip_space()))
        char = yield from text.skip_space()
        if char == ",":
            char = yield from text.skip_space()
    return (yield from text.literal("<|tools_suffix|>", (yield from text.skip_space())))


_TAGS = ("</tool_call>",)
HERMES = ToolCallSyntax(
    "hermes", ("<tool_call>",), hermes, template_marks=("<tool_call>",), other_markers=_TAGS, strays=_TAGS
)
QWEN_CODER = ToolCallSyntax(
    "qwen3_coder", ("<tool_call>", "<function="), qwen_coder,
    template_marks=("<parameter=", "<tool_call>\n<function="), other_markers=_TAGS, strays=_TAGS,
)  # fmt: skip
FUNCTIONARY = ToolCallSyntax(
    "functionary_v3", ("<function=",), qwen_call,
    template_marks=("<function=",), other_markers=("</function>",), strays=("</function>",),
)  # fmt: skip
GRANITE = ToolCallSyntax(
    "granite", ("<|tool_call|>", "<tool_call>"), granite,
    template_marks=("<|tool_call|>",), other_markers=_TAGS, strays=_TAGS,
)  # fmt: skip
MISTRAL = ToolCallSyntax(
    "mistral", ("[TOOL_CALLS]",), mistral, template_marks=("[TOOL_CALLS]",), other_markers=("[ARGS]", "[CALL_ID]")
)
LLAMA = ToolCallSyntax(
    "llama3_json", ("{", "<|python_tag|>"), llama, only_first=True,
    template_marks=('"parameters": dictionary of argument name',), is_ambiguous=True,
)  # fmt: skip
PHI = ToolCallSyntax("phi4_mini_json", ("functools", "<|tool_call|>"), phi, template_marks=("<|tool|>", "functools["))
NEMOTRON = ToolCallSyntax(
    "nemotron_json", ("<TOOLCALL>",), nemotron,
    template_marks=("<TOOLCALL>",), other_markers=("</TOOLCALL>",), strays=("</TOOLCALL>",),
)  # fmt: skip
_HUNYUAN = ("</tool_calls>", "<answer>", "</answer>")
HUNYUAN = ToolCallSyntax(
    "hunyuan_a13b", ("<tool_calls>",), hunyuan,
    template_marks=("<tool_calls>",), other_markers=_HUNYUAN, strays=_HUNYUAN, frames_text=True,
)  # fmt: skip
_COHERE = ("<|END_ACTION|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>")
COHERE = ToolCallSyntax(
    "cohere_command", ("<|START_ACTION|>",), cohere,
    template_marks=("<|START_ACTION|>",), other_markers=_COHERE, strays=_COHERE, frames_text=True,
)  # fmt: skip
APERTUS = ToolCallSyntax(
    "apertus", ("<|tools_prefix|>",), apertus,
    template_marks=("<|tools_prefix|>",), other_markers=("<|tools_suffix|>",), strays=("<|tools_suffix|>",),
)  # fmt: skip
ARRAY = ToolCallSyntax("json", ("[",), array, only_first=True)  # what forced calls are written in
