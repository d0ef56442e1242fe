"""Lark grammars, in llguidance's variant, of calls in models' own syntaxes behind the marker of a call."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import orjson

from server.output_parsers.families.deepseek import DEEPSEEK
from server.output_parsers.families.json_formats import HERMES, LLAMA, MISTRAL
from server.output_parsers.families.tool_call_syntax import ToolCallSyntax
from server.output_parsers.tagged_lark import read_markers, tagged_lark
from server.protocol.structured_outputs import Grammar, GrammarKind
from server.protocol.tools import FunctionDefinition, StrictCalls, arguments_schema, array_of_calls

Part: TypeAlias = str | dict[str, Any]  # text in Lark, or a JSON schema
_SPACES = "SPACES: /[ \\t\\r\\n]{1,8}/\n"
_SPACE = 'SPACE: " " | /\\r?\\n/\n'
_CLOSING = " \\t\\r\\n}\\]`"  # in a class of characters


class LarkMarkers:
    """The markers of a model as grammar symbols: control tokens without text by id, others as text."""

    def __init__(self, control_ids: Mapping[str, int]) -> None:
        self._control_ids = control_ids

    def __getitem__(self, marker: str) -> str:
        token_id = self._control_ids.get(marker)
        return orjson.dumps(marker).decode() if token_id is None else f"<[{token_id}]>"

    def __contains__(self, marker: str) -> bool:
        return marker in self._control_ids


class ToolCallLark(NamedTuple):
    """The grammar of the calls in one syntax."""

    grammar: Grammar
    begins: Mapping[bytes, bytes]  # the markers, and of each what the grammar reads of it too


def tool_call_lark(syntax: ToolCallSyntax, calls: StrictCalls, markers: LarkMarkers) -> ToolCallLark | None:
    """The grammar of calls; None for a syntax that cannot enforce schemas. Raises ValueError for a bad schema."""
    if not any(marker in markers for marker in syntax.markers):
        tagged = tagged_lark(syntax, calls)
        if tagged is not None:
            return ToolCallLark(Grammar(GrammarKind.CALLS, _source(tagged)), read_markers(syntax))
    write = _WRITERS.get(syntax.name)
    if write is None:
        return None
    source = _source(write(calls, markers))
    begins = {begin.encode(): begin.encode() if begin == "{" else b"" for begin in syntax.begins}
    return ToolCallLark(Grammar(GrammarKind.CALLS, source), begins)


def arguments_lark(tools: Sequence[FunctionDefinition], *, is_single: bool = False) -> Grammar:
    """The grammar of one of the tools' names, a line end, and what stands behind the key of its arguments in JSON.

    What may follow the arguments in the token that ends them is part of it: without `}\\n` a model would write `}` and
    go on as it never does. Where the call is the only one, no other may begin there.

    Raises ValueError if the schema of a tool cannot be written as JSON.
    """
    calls = " | ".join(f"call{index}" for index in range(len(tools)))
    behind = _CLOSING if is_single else _CLOSING + ',{"'
    parts: list[Part] = [f"start: ({calls}) BEHIND?\n{_SPACES}BEHIND: /[{behind}]{{1,32}}/\n"]
    for index, tool in enumerate(tools):
        begin = orjson.dumps(f"{tool.name}\n").decode()
        parts += [f'call{index}: {begin} SPACES? ":" SPACES? arguments{index}\narguments{index}: %json ']
        parts += [arguments_schema(tool), "\n"]
    return Grammar(GrammarKind.CALLS, _source(parts))


def calls_or_form(
    form: Grammar, syntax: ToolCallSyntax, tools: Sequence[FunctionDefinition], most: int, markers: LarkMarkers
) -> Grammar | None:
    """The grammar of an answer that is either calls or has a form of its own; None where the form is no JSON schema.

    A call is an object in JSON, or in the model's own syntax where schemas can be enforced in that.

    Raises ValueError if the schema of a tool cannot be written as JSON.
    """
    if form.kind is not GrammarKind.JSON_SCHEMA:
        return None
    try:
        schema = orjson.loads(form.source)
    except orjson.JSONDecodeError:
        return None
    calls = StrictCalls.of_all(tools, most)
    write, own = _WRITERS.get(syntax.name), ""
    parts: list[Part] = [
        "form: %json ", schema if isinstance(schema, dict) else {"anyOf": [schema]}, "\nbare: %json ",
        calls.schema("arguments"), "\n",
    ]  # fmt: skip
    if write is not None and syntax is not LLAMA:
        first, *rest = write(calls, markers)
        begins = " | ".join(markers[begin] for begin in syntax.begins)
        repeated = f"{{1,{most}}}" if most > 1 else ""
        own = " | (own SPACE?)" + repeated
        parts += [f"own: ({begins}) behind\n" + str(first).replace("start:", "behind:", 1), *rest]
    return Grammar(GrammarKind.CALLS, _source([f"start: form | bare{own}\n", *parts]))


def _source(parts: list[Part]) -> str:
    try:
        return orjson.dumps(parts).decode()
    except orjson.JSONEncodeError as error:
        raise ValueError(f"the schema of a tool cannot be written as JSON: {error}") from error


def _hermes(calls: StrictCalls, markers: LarkMarkers) -> list[Part]:
    return [f"start: SPACE? call SPACE? {markers['</tool_call>']}\n{_SPACE}call: %json ", calls.schema("arguments")]


def _llama(calls: StrictCalls, markers: LarkMarkers) -> list[Part]:
    return ["start: %json ", calls.schema("parameters")]


def _mistral(calls: StrictCalls, markers: LarkMarkers) -> list[Part]:
    forms, named = ["array"], []
    if "[ARGS]" in markers:
        forms += [f"named{index}" for index in range(len(calls.tools))]
        call_id = f"({markers['[CALL_ID]']} /[A-Za-z0-9]{{9}}/)? " if "[CALL_ID]" in markers else ""
        for index, tool in enumerate(calls.tools):
            named += _named(calls, index, f'"{tool.name}" {call_id}{markers["[ARGS]"]} arguments{index}')
    array = array_of_calls(calls.schema("arguments"), calls.most)
    return [f"start: SPACE? ({' | '.join(forms)})\n{_SPACE}array: %json ", array, "\n", *named]


def _deepseek(calls: StrictCalls, markers: LarkMarkers) -> list[Part]:
    calls_begin, begin, separator, end, calls_end = (markers[marker] for marker in DEEPSEEK.markers)
    del calls_begin  # has come already
    parts: list[Part] = []
    for index, tool in enumerate(calls.tools):
        fenced = f'"function" {separator} "{tool.name}\\n```json\\n" arguments{index} "\\n```"'
        parts += _named(calls, index, f'{fenced} | "{tool.name}" {separator} arguments{index}')
    forms = " | ".join(f"named{index}" for index in range(len(calls.tools)))
    most = f"{{1,{calls.most}}}" if calls.most > 1 else ""
    return [f"start: (SPACE? call){most} SPACE? {calls_end}\n{_SPACE}call: {begin} ({forms}) {end}\n", *parts]


def _named(calls: StrictCalls, index: int, rule: str) -> list[Part]:
    schema = calls.arguments_of(calls.tools[index])
    return [f"named{index}: {rule}\narguments{index}: %json ", schema, "\n"]


_WRITERS: Mapping[str, Callable[[StrictCalls, LarkMarkers], list[Part]]] = {
    HERMES.name: _hermes,
    LLAMA.name: _llama,
    MISTRAL.name: _mistral,
    DEEPSEEK.name: _deepseek,
}
