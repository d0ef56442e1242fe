"""Functionary 3.2's answers: `>>>name` and the arguments, or `>>>all` and text. The prompt has the first `>>>`."""

from server.output_parsers.families.tool_call_syntax import ToolCallSyntax
from server.output_parsers.reading.tool_call_reader import MAX_NAME_CHARS, CharCoroutine, NotAToolCall, ToolCallReader


def functionary(text: ToolCallReader) -> CharCoroutine:
    name, char = "", (yield)
    while char != "\n":
        if not (char.isalnum() or char in "_-.:/") or len(name) == MAX_NAME_CHARS:
            raise NotAToolCall
        name += char
        char = yield
    if name == "all":
        return ""
    char = yield from text.skip_space()
    if char != "{":
        raise NotAToolCall
    text.start(name)
    return (yield from text.arguments(char))


FUNCTIONARY_V32 = ToolCallSyntax(
    "functionary_v32", (">>>",), functionary,
    template_marks=(">>>all",), is_ambiguous=True, frames_text=True, is_open=True,
)  # fmt: skip
