"""Forms of a conversation that say the same, for chat templates that refuse the first one.

Templates differ in what they take: some want ids of nine characters, arguments as text, alternating roles, a system
message at the beginning or none, one call in a turn, or know no tools at all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, product
from typing import Any

from server.media.picture import Content, join_contents, text_of

Message = Mapping[str, Any]
Messages = list[dict[str, Any]]

_SHORT_ID_CHARS = 9  # as Mistral's templates want it

# How a model learns of tools from a template that cannot tell it of them: the words and the syntax of Hermes 2 Pro, in
# which most small models were trained.
_TOOLS = """You may call one or more functions to help with the user's request.

Their signatures are within <tools></tools>:
<tools>
{tools}
</tools>

For each call, return a JSON object with the function's name and arguments within <tool_call></tool_call>:
<tool_call>
{{"name": <function-name>, "arguments": <arguments-object>}}
</tool_call>"""


def forms_of(messages: Sequence[Message]) -> Iterator[Messages]:
    """Other forms of a conversation, the closest ones first. None of them loses anything that a template could say."""
    whole = _with_ids([dict(message) for message in messages])
    seen: list[Messages] = [list(map(dict, messages))]
    for steps in _COMBINATIONS:
        form = whole
        for step in steps:
            form = step(form)
        if form not in seen:
            seen.append(form)
            yield form
    texts = as_texts(whole)
    yield _alternating(texts)
    yield _alternating([message for message in texts if message["content"]])


def with_described_tools(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Messages:
    """The conversation with the tools in its system message."""
    described = _TOOLS.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    rest = [dict(message) for message in messages]
    if not rest or rest[0]["role"] != "system":
        return [{"role": "system", "content": described}, *rest]
    contents = [rest[0]["content"], described] if rest[0]["content"] else [described]
    return [{**rest[0], "content": join_contents(contents, "\n\n")}, *rest[1:]]


def leaves_out_system(text: str, messages: Sequence[Message]) -> bool:
    """Whether a rendered text lacks the text of a system message."""
    return any(message["role"] == "system" and text_of(message["content"]).strip() not in text for message in messages)


def with_early_system(messages: Sequence[Message]) -> Iterator[Messages]:
    """Forms of a conversation for templates that leave out a system message where it stands: as the first one, and as
    a part of the user's first turn."""
    first = _with_system_first(_with_ids([dict(message) for message in messages]))
    yield first
    yield _alternating(first)


def described_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool of which each argument has a description, if only an empty one."""
    function = dict(tool["function"])
    parameters = function.get("parameters")
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    if isinstance(parameters, dict) and isinstance(properties, dict):
        described = {
            name: {"description": "", **part} if isinstance(part, dict) else part for name, part in properties.items()
        }
        function["parameters"] = {**parameters, "properties": described}
    return {**tool, "function": function}


def _with_ids(messages: Messages) -> Messages:
    """Each call has an id, and each result that of its call."""
    filled, waiting, num_calls = [], [], 0
    for message in messages:
        message = dict(message)
        if message.get("tool_calls"):
            calls = []
            for call in message["tool_calls"]:
                num_calls += 1
                calls.append({**call, "id": call.get("id") or f"call{num_calls:05d}"})
            message["tool_calls"], waiting = calls, [call["id"] for call in calls]
        elif message["role"] == "tool":
            known = message.get("tool_call_id") or (waiting[0] if waiting else "call00000")
            waiting = [call_id for call_id in waiting if call_id != known]
            message["tool_call_id"] = known
        filled.append(message)
    return filled


def _with_calls(messages: Messages, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Messages:
    return [
        {**message, "tool_calls": [change(call) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else message
        for message in messages
    ]


def _with_arguments(call: dict[str, Any], arguments: Any) -> dict[str, Any]:
    return {**call, "function": {**call["function"], "arguments": arguments}}


def _with_mappings(messages: Messages) -> Messages:
    """Arguments that are no object, such as those of a call that was cut off, are the only entry of one."""

    def change(call: dict[str, Any]) -> dict[str, Any]:
        arguments = call["function"]["arguments"]
        return _with_arguments(call, arguments if isinstance(arguments, dict) else {"arguments": arguments})

    return _with_calls(messages, change)


def _with_argument_texts(messages: Messages) -> Messages:
    def change(call: dict[str, Any]) -> dict[str, Any]:
        arguments = call["function"]["arguments"]
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        return _with_arguments(call, text)

    return _with_calls(messages, change)


def _with_short_ids(messages: Messages) -> Messages:
    def shortened(call_id: str) -> str:
        if len(call_id) == _SHORT_ID_CHARS and call_id.isalnum() and call_id.isascii():
            return call_id
        return hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:_SHORT_ID_CHARS]

    changed = _with_calls(messages, lambda call: {**call, "id": shortened(call["id"])})
    return [
        {**message, "tool_call_id": shortened(message["tool_call_id"])} if message["role"] == "tool" else message
        for message in changed
    ]


def _with_one_call_a_turn(messages: Messages) -> Messages:
    """Several calls of one turn become as many turns, each with its result."""
    changed: Messages = []
    at = 0
    while at < len(messages):
        message = messages[at]
        at += 1
        calls = message.get("tool_calls") or ()
        if len(calls) < 2:
            changed.append(message)
            continue
        results: Messages = []
        while at < len(messages) and messages[at]["role"] == "tool":
            results.append(messages[at])
            at += 1
        for index, call in enumerate(calls):
            turn = {**message, "tool_calls": [call]}
            changed.append(turn if index == 0 else {"role": "assistant", "content": "", "tool_calls": [call]})
            changed += [result for result in results if result["tool_call_id"] == call["id"]]
        ids = {call["id"] for call in calls}
        changed += [result for result in results if result["tool_call_id"] not in ids]
    return changed


def _with_system_first(messages: Messages) -> Messages:
    """One system message at the beginning; a later one is told by the user."""
    first = next((at for at, message in enumerate(messages) if message["role"] != "system"), len(messages))
    changed: Messages = []
    if first:
        content = join_contents((message["content"] for message in messages[:first]), "\n\n")
        changed.append({"role": "system", "content": content})
    changed += [{**message, "role": "user"} if message["role"] == "system" else message for message in messages[first:]]
    return _joined(changed)


def _alternating(messages: Messages) -> Messages:
    """The system message is a part of the user's first turn, which comes first."""
    if messages and messages[0]["role"] == "system":
        messages = [{**messages[0], "role": "user"}, *messages[1:]]
    if messages and messages[0]["role"] != "user":
        messages = [{"role": "user", "content": ""}, *messages]
    return _joined(messages)


def as_texts(messages: Sequence[Message]) -> Messages:
    """Calls and their results are texts of assistant and user."""
    changed: Messages = []
    for message in map(dict, messages):
        if message["role"] == "tool":
            content = join_contents(["<tool_response>", message["content"], "</tool_response>"])
            changed.append({"role": "user", "content": content})
        elif message.get("tool_calls"):
            texts = [message["content"]] if message["content"] else []
            for call in message["tool_calls"]:
                arguments = call["function"]["arguments"]
                if not isinstance(arguments, str):
                    arguments = json.dumps(arguments, ensure_ascii=False)
                name = json.dumps(call["function"]["name"], ensure_ascii=False)
                texts.append(f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>')
            changed.append({"role": "assistant", "content": join_contents(texts)})
        else:
            changed.append(message)
    return _joined(changed)


def _joined(messages: Messages) -> Messages:
    """Messages in a row that are nothing but text of one role become one."""
    rows: list[tuple[dict[str, Any], list[Content]]] = []
    for message in messages:
        is_text = not message.get("tool_calls") and message["role"] in ("user", "assistant", "system")
        before = rows[-1][0] if rows else None
        if is_text and before is not None and before["role"] == message["role"] and not before.get("tool_calls"):
            rows[-1][1].append(message["content"])
        else:
            rows.append((message, [message["content"]]))
    return [
        message if len(texts) == 1 else {"role": message["role"], "content": join_contents(texts)}
        for message, texts in rows
    ]


_Step = Callable[[Messages], Messages]
_STEPS: tuple[tuple[tuple[_Step, ...], ...], ...] = (
    ((_with_mappings,), (_with_argument_texts,)),
    ((), (_with_one_call_a_turn,)),
    ((), (_with_short_ids,)),
    ((), (_with_system_first,), (_with_system_first, _alternating)),
)
# Every choice of one of each row, those with the fewest changes first.
_COMBINATIONS = [
    tuple(chain.from_iterable(row[at] for row, at in zip(_STEPS, choice, strict=True)))
    for choice in sorted(product(*(range(len(row)) for row in _STEPS)), key=sum)
]
