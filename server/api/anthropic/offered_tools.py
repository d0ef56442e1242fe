"""The tools of a request and the choice among them, also in the forms of OpenAI's APIs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from server.protocol.base_models import LenientModel, bounded
from server.protocol.structured_outputs import TOOL_NAME_PATTERN
from server.protocol.tool_choice import as_word, flat
from server.protocol.tools import MAX_TOOLS, FunctionDefinition, Tool, as_schema, with_parameters


class ClientTool(LenientModel):
    """A tool by its name and the JSON schema of its input. Tools that Anthropic's own servers run have no schema."""

    name: Annotated[str, Field(pattern=TOOL_NAME_PATTERN)]
    description: str | None = None
    input_schema: Annotated[dict[str, Any], BeforeValidator(as_schema, json_schema_input_type=dict[str, Any])]
    strict: bool | None = None  # calls follow the schema always

    def to_tool(self) -> Tool:
        """The tool in OpenAI's form; names may be longer here."""
        function = FunctionDefinition.model_construct(
            name=self.name, description=self.description, parameters=self.input_schema, strict=self.strict
        )
        return Tool.model_construct(type="function", function=function)


class ServerTool(LenientModel):
    """A tool that Anthropic's servers run, or whose schema they alone know: it is not part of the prompt."""

    type: str
    name: str | None = None


def _tag_of(tool: Any) -> str:
    if not isinstance(tool, dict):
        return "<server>" if isinstance(tool, ServerTool) else "<client>"
    has_schema = "input_schema" in tool or tool.get("type") in (None, "custom")
    return "<client>" if has_schema or not isinstance(tool.get("type"), str) else "<server>"


def _as_client_tool(tool: Any) -> Any:
    """A function of OpenAI's APIs as a tool of this one."""
    if not isinstance(tool, dict) or "input_schema" in tool or tool.get("type") not in (None, "custom", "function"):
        return tool
    nested = tool.get("function")
    parts = with_parameters(nested if isinstance(nested, dict) else tool)
    if parts is tool and tool.get("type") != "function" and "parameters" not in tool:
        return tool  # whose schema is missing
    rest = {name: part for name, part in parts.items() if name != "parameters"}
    return {**rest, "type": "custom", "input_schema": parts.get("parameters") or {"type": "object"}}


# The tags of a union's members have angle brackets, which keep them out of the paths in errors.
AnyTool = Annotated[
    Annotated[ClientTool, Tag("<client>")] | Annotated[ServerTool, Tag("<server>")],
    Discriminator(_tag_of),
    BeforeValidator(_as_client_tool),
]
AnyTools = Annotated[list[AnyTool], Field(fail_fast=True), bounded("tools", MAX_TOOLS)]


def _as_choice(choice: Any) -> Any:
    """A choice of OpenAI's APIs in the form of this one."""
    word = as_word(choice)
    if word is not None:
        more = choice if isinstance(choice, dict) else {}
        return {**more, "type": _OWN_WORDS.get(word, word)}
    named = flat(choice)
    if isinstance(named, dict) and named.get("type") in ("function", "custom"):
        return {**named, "type": "tool"}
    return choice


_OWN_WORDS = {"required": "any"}


class ToolChoice(LenientModel):
    """Which tools the model may or must call."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _in_this_form(cls, value: Any) -> Any:
        return _as_choice(value)

    @model_validator(mode="after")
    def _names_a_tool(self) -> ToolChoice:
        if self.type == "tool" and self.name is None:
            raise ValueError("tool_choice has the type tool and no name; it must name one of the tools")
        return self
