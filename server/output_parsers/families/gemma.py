"""Gemma 3's calls: a fence of code with JSON or Python in it."""

from server.output_parsers.families.pythonic_calls import python_call
from server.output_parsers.families.tool_call_syntax import ToolCallSyntax
from server.output_parsers.reading.tool_call_reader import CharCoroutine, ToolCallReader


def gemma(text: ToolCallReader) -> CharCoroutine:
    """A fence of code with JSON (an object or an array) or Python in it; `print(…)` around a call is skipped."""
    char = yield from text.skip_space()
    if char == "{":
        yield from text.call_object(char)
        return (yield from text.literal("```", (yield from text.skip_space())))
    end = "`"
    if char == "[":
        char = yield from text.skip_space()
        if char == "{":
            yield from text.more_objects(char)
            return (yield from text.literal("```", (yield from text.skip_space())))
        end = "]"
    while char != end:
        yield from python_call(text, char, may_print=True)
        char = yield from text.skip_space()
        if char in ",;":
            char = yield from text.skip_space()
    if end == "]":
        char = yield from text.skip_space()
    return (yield from text.literal("```", char))


GEMMA = ToolCallSyntax("gemma", ("```tool_code", "```json"), gemma, template_marks=("```tool_code",), is_ambiguous=True)
