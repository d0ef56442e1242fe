"""The parameter `tool_choice` of chats: a word, one tool, or some of the tools.

Other APIs say the same in other forms, which are brought into OpenAI's here.
"""

from __future__ import annotations

from collections.abc import Set
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from server.protocol.base_models import StrictModel, bounded
from server.protocol.errors import invalid_value, shorten
from server.protocol.tools import MAX_TOOLS

WORDS = ("none", "auto", "required")
_OTHER_WORDS = {"any": "required"}  # Mistral's, and the type of Anthropic's object
_ONE_TOOL = ("function", "custom", "tool")  # types of an object that names one tool; the last is Anthropic's


def as_word(choice: Any) -> str | None:
    """The word that a `tool_choice` is, or has as its type in Anthropic's form; None for any other."""
    word = choice.get("type") if isinstance(choice, dict) else choice
    if not isinstance(word, str):
        return None
    return word if word in WORDS else _OTHER_WORDS.get(word)


def with_parallel(body: Any) -> Any:
    """A body with `parallel_tool_calls` of false, if its `tool_choice` says that in Anthropic's form."""
    choice = body.get("tool_choice") if isinstance(body, dict) else None
    if isinstance(choice, dict) and choice.get("disable_parallel_tool_use") is True:
        return {**body, "parallel_tool_calls": False}
    return body


def nested(choice: Any) -> Any:
    """A `tool_choice` in the form of chats, in which a tool's name has an object of its own.

    Raises ApiError where it is neither a word nor names tools.
    """
    word = as_word(choice)
    if word is not None:
        return word
    if not isinstance(choice, dict):
        raise _unknown(choice)
    if choice.get("type") != "allowed_tools":
        return _nested_tool(choice)
    allowed = choice["allowed_tools"] if "allowed_tools" in choice else _without_type(choice)
    if isinstance(allowed, dict) and isinstance(allowed.get("tools"), list):
        tools = [_nested_tool(tool) if isinstance(tool, dict) else tool for tool in allowed["tools"]]
        allowed = {"mode": "auto", **allowed, "tools": tools}
    return {"type": "allowed_tools", "allowed_tools": allowed}


def flat(choice: Any) -> Any:
    """A `tool_choice` in the form of Responses, in which a tool's name stands beside its type."""
    word = as_word(choice)
    if word is not None:
        return word
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") != "allowed_tools":
        return _flat_tool(choice)
    if isinstance(choice.get("allowed_tools"), dict):
        choice = {"type": "allowed_tools", **choice["allowed_tools"]}
    if isinstance(choice.get("tools"), list):
        choice = {**choice, "tools": [_flat_tool(tool) if isinstance(tool, dict) else tool for tool in choice["tools"]]}
    return choice


def _nested_tool(tool: dict[str, Any]) -> dict[str, Any]:
    kind = tool.get("type", "function")
    if kind not in _ONE_TOOL:
        raise _unknown(tool)
    key = "custom" if kind == "custom" else "function"
    if key in tool:
        return {"type": key, key: tool[key]}
    if not isinstance(tool.get("name"), str):
        raise invalid_value(f"tool_choice is {shorten(tool)}; it must have the name of a tool", "tool_choice")
    return {"type": key, key: {"name": tool["name"]}}


def _flat_tool(tool: dict[str, Any]) -> dict[str, Any]:
    kind = tool.get("type", "function" if "name" in tool else None)
    named = tool.get(kind) if kind in ("function", "custom") else None
    if isinstance(named, dict) and "name" not in tool:
        return {"type": kind, "name": named.get("name")}
    return {**tool, "type": "function"} if kind in ("tool", "function") else tool


def _without_type(choice: dict[str, Any]) -> dict[str, Any]:
    return {name: part for name, part in choice.items() if name != "type"}


def _unknown(choice: Any) -> Exception:
    return invalid_value(
        f'tool_choice is {shorten(choice)}; it must be "none", "auto", "required", one tool, as in '
        '{"type":"function","function":{"name":"…"}}, or an object of the type "allowed_tools"',
        "tool_choice",
    )


class FunctionName(StrictModel):
    """A function, or a custom tool, by its name."""

    name: str


class NamedTool(StrictModel):
    """One tool by its name."""

    type: Literal["function"]
    function: FunctionName


class NamedCustomTool(StrictModel):
    """One custom tool by its name."""

    type: Literal["custom"]
    custom: FunctionName

    @property
    def function(self) -> FunctionName:
        return self.custom


def _tag_of(choice: Any) -> str:
    if isinstance(choice, str):
        return "<word>"
    kind = choice.get("type") if isinstance(choice, dict) else getattr(choice, "type", None)
    return f"<{kind}>" if kind in ("custom", "allowed_tools") else "<function>"


OneTool = Annotated[
    Annotated[NamedTool, Tag("<function>")] | Annotated[NamedCustomTool, Tag("<custom>")], Discriminator(_tag_of)
]


class AllowedSet(StrictModel):
    """Some of the tools, among which the model may or must choose."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[OneTool], Field(min_length=1, fail_fast=True), bounded("tools", MAX_TOOLS)]


class AllowedTools(StrictModel):
    """A choice among some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedSet

    @cached_property
    def names(self) -> Set[str]:
        """The names of the tools."""
        return dict.fromkeys(tool.function.name for tool in self.allowed_tools.tools).keys()


# The tags of a union's members have angle brackets, which keep them out of the paths in errors.
ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<word>")]
    | Annotated[NamedTool, Tag("<function>")]
    | Annotated[NamedCustomTool, Tag("<custom>")]
    | Annotated[AllowedTools, Tag("<allowed_tools>")],
    Discriminator(_tag_of),
    BeforeValidator(nested),
]
