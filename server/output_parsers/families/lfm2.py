"""LFM2's calls: Python, or JSON, between two markers."""

from server.output_parsers.families.pythonic_calls import python_calls
from server.output_parsers.families.tool_call_syntax import ToolCallSyntax
from server.output_parsers.reading.tool_call_reader import CharCoroutine, ToolCallReader

_END = "<|tool_call_end|>"


def lfm2(text: ToolCallReader) -> CharCoroutine:
    yield from text.literal("[", (yield from text.skip_space()))
    char = yield from text.skip_space()
    yield from text.more_objects(char) if char == "{" else python_calls(text, char)
    return (yield from text.literal(_END, (yield from text.skip_space())))


LFM2 = ToolCallSyntax(
    "lfm2", ("<|tool_call_start|>",), lfm2,
    template_marks=("<|tool_call_start|>", "<|tool_list_start|>", "List of tools: ["),
    other_markers=(_END,), strays=(_END,),
)  # fmt: skip
