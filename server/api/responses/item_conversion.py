"""Converts items into the messages that chat templates expect."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import orjson

from server.api.responses.input_items import unsealed
from server.api.responses.items import Item, content_of, text_of
from server.api.responses.offered_tools import OfferedTools, joined_name
from server.generation.roles import template_role
from server.media.picture import Content
from server.protocol.custom_tools import arguments_of
from server.protocol.errors import ApiError, shorten
from server.protocol.json_limits import ARGUMENTS, refuse_too_many_values
from server.protocol.tools import FunctionCall, ToolCall

Message = dict[str, Any]

_WITH_ARGUMENTS = ("function_call", "mcp_call")  # whose arguments are JSON texts
_SUMMARY = "This is a summary of the conversation before:\n"
_NO_TOOLS = OfferedTools(())


class _Call(NamedTuple):
    call_id: str
    name: str  # by which the model knows the tool
    arguments: str


class _Result(NamedTuple):
    call_id: str
    content: Content


def to_messages(
    items: Iterable[Item], instructions: str | None = None, tools: OfferedTools = _NO_TOOLS, *, num_before: int = 0
) -> list[Message]:
    """The conversation of the items.

    Reasoning belongs to the answer behind it, and calls belong to the answer before them. Instructions and the system
    messages at the beginning become one message, because many templates allow only one.

    Args:
        tools: whose names calls have in the prompt.
        num_before: items at the beginning that the request does not have itself.

    Raises ApiError where the arguments of all calls have more values than one body may have.
    """
    items = list(items)
    arguments = [item["arguments"] for item in items if item["type"] in _WITH_ARGUMENTS]
    refuse_too_many_values(arguments, ARGUMENTS)
    messages: list[Message] = []
    beginning = [instructions] if instructions else []  # joined at the end: one by one, each would copy all before it
    reasoning: str | None = None
    names: dict[str, str] = {}  # of the functions, by the ids of their calls
    for at, item in enumerate(items, start=-num_before):
        path = f"input[{at}]" if at >= 0 else "an earlier response"
        if item["type"] == "reasoning":
            reasoning = text_of(item) or "\n".join(part["text"] for part in item["summary"]) or None
            continue
        if item["type"] == "message":
            if not messages and _role_of(item) == "system" and all("text" in part for part in item["content"]):
                beginning.append(text_of(item))
            else:
                _add_message(messages, item, reasoning, path)
        else:
            for part in _parts_of(item, tools, path):
                match part:
                    case _Call():
                        names[part.call_id] = part.name
                        _add_call(messages, part, reasoning)
                    case _Result():
                        _add_output(messages, part, names.get(part.call_id))
                    case str():
                        messages.append({"role": "user", "content": part})
                reasoning = None
            continue
        reasoning = None
    return [{"role": "system", "content": "\n\n".join(beginning)}, *messages] if beginning else messages


def refuse_stray_outputs(before: Iterable[Item], given: Iterable[Item]) -> None:
    """Raises ApiError for the result of a function's call that is not among the items before it."""
    known = {item["call_id"] for item in before if "call_id" in item}
    for at, item in enumerate(given):
        call_id = item.get("call_id")
        if item["type"] == "function_call_output" and call_id not in known:
            raise ApiError(
                f"No tool call found for function call output with call_id {shorten(call_id)}.",
                param=f"input[{at}].call_id",
                code="invalid_value",
            )
        known |= {call_id, item["id"]} if call_id else {item["id"]}


def _parts_of(item: Item, tools: OfferedTools, path: str) -> Iterable[_Call | _Result | str]:
    """What an item that is neither a message nor reasoning says to the model."""
    call_id = str(item.get("call_id") or item["id"])
    match item["type"]:
        case "function_call":
            name = tools.model_name("function", item["name"], item.get("namespace"))
            yield _Call(call_id, name, item["arguments"])
        case "custom_tool_call":
            name = tools.model_name("custom", item["name"], item.get("namespace"))
            yield _Call(call_id, name, arguments_of(item["input"]))
        case "local_shell_call":
            yield _Call(
                call_id, tools.model_name("local_shell", "local_shell"), _action_of(item, "type", "user", "env")
            )
        case "shell_call":
            yield _Call(call_id, tools.model_name("shell", "shell"), _action_of(item))
        case "apply_patch_call":
            operation = orjson.dumps(item["operation"]).decode()
            yield _Call(call_id, tools.model_name("apply_patch", "apply_patch"), operation)
        case "tool_search_call":
            arguments = item.get("arguments")
            yield _Call(call_id, "tool_search", orjson.dumps(arguments if isinstance(arguments, dict) else {}).decode())
        case "mcp_call" | "code_interpreter_call":
            yield from _of_server(item, call_id)
        case "function_call_output" | "custom_tool_call_output" | "local_shell_call_output":
            yield _Result(call_id, content_of(item["output"], f"{path}.output"))
        case "apply_patch_call_output":
            yield _Result(call_id, content_of(item["output"] or item["status"], f"{path}.output"))
        case "shell_call_output":
            yield _Result(call_id, "\n".join(map(_written, item["output"])))
        case "tool_search_output":
            found = [tool["name"] for tool in item["tools"] if isinstance(tool.get("name"), str)]
            yield _Result(call_id, f"Found: {', '.join(found)}" if found else "Nothing was found.")
        case "compaction" | "compaction_summary" | "context_compaction":
            summary = unsealed(item.get("encrypted_content"))
            if summary is not None:
                yield _SUMMARY + summary


def _action_of(item: Item, *without: str) -> str:
    action = {name: part for name, part in item["action"].items() if part is not None and name not in without}
    return orjson.dumps(action).decode()


def _of_server(item: Item, call_id: str) -> Iterable[_Call | _Result]:
    """A call that another server has made, with its result."""
    if item["type"] == "mcp_call":
        yield _Call(call_id, joined_name(item.get("server_label"), item.get("name") or "tool"), item["arguments"])
        error = item.get("error")
        result = item.get("output") or ("" if error is None else f"Error: {_as_text(error)}")
    else:
        yield _Call(call_id, "code_interpreter", orjson.dumps({"code": item.get("code") or ""}).decode())
        logs = [part.get("logs") for part in item.get("outputs") or ()]
        result = "\n".join(each for each in logs if isinstance(each, str))
    yield _Result(call_id, result)


def _written(output: dict[str, Any]) -> str:
    """What one command of a shell has written, and how it has ended where that says something."""
    parts = [part for part in (output.get("stdout"), output.get("stderr")) if isinstance(part, str) and part]
    outcome = output.get("outcome")
    if isinstance(outcome, dict):
        if outcome.get("type") == "timeout":
            parts.append("(timeout)")
        elif outcome.get("exit_code"):
            parts.append(f"(exit code {outcome['exit_code']})")
    return "\n".join(parts)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _role_of(item: Item) -> str:
    return template_role(item["role"])


def _add_message(messages: list[Message], item: Item, reasoning: str | None, path: str) -> None:
    message: Message = {"role": _role_of(item), "content": content_of(item["content"], f"{path}.content")}
    if message["role"] == "assistant" and reasoning is not None:
        message["reasoning_content"] = reasoning
    messages.append(message)


def _add_call(messages: list[Message], made: _Call, reasoning: str | None) -> None:
    function = FunctionCall(name=made.name, arguments=made.arguments)
    call = ToolCall(id=made.call_id, function=function).to_template()
    last = messages[-1] if messages else None
    if last is None or last["role"] != "assistant" or reasoning is not None:
        last = {"role": "assistant", "content": ""}
        if reasoning is not None:
            last["reasoning_content"] = reasoning
        messages.append(last)
    last.setdefault("tool_calls", []).append(call)


def _add_output(messages: list[Message], result: _Result, name: str | None) -> None:
    message: Message = {"role": "tool", "content": result.content, "tool_call_id": result.call_id}
    if name is not None:
        message["name"] = name
    messages.append(message)
