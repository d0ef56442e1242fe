"""Tools as Anthropic's clients name them, and which of them the model is to call."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from server.api.anthropic.tolerant_model import TolerantModel
from server.protocol.errors import shorten
from server.protocol.tools import MAX_CALLS, ForcedCalls, FunctionDefinition, StrictCalls, Tool, as_schema

MAX_TOOLS = 512
TOOL_NAME_PATTERN = r"^[A-Za-z0-9_-]{1,128}$"


class ClientTool(TolerantModel):
    """A tool by its name and the JSON schema of its input. Tools that Anthropic's own servers run have no schema."""

    name: Annotated[str, Field(pattern=TOOL_NAME_PATTERN)]
    description: str | None = None
    input_schema: Annotated[dict[str, Any], BeforeValidator(as_schema, json_schema_input_type=dict[str, Any])]

    strict: bool | None = None  # calls follow the schema always

    @model_validator(mode="before")
    @classmethod
    def _has_a_schema(cls, value: Any) -> Any:
        if isinstance(value, dict) and "input_schema" not in value and value.get("type") not in (None, "custom"):
            raise ValueError(
                f"tools has one of type {shorten(value['type'])}, which runs on Anthropic's servers; "
                "this server takes tools with an input_schema"
            )
        return value

    def to_tool(self) -> Tool:
        """The tool as chat requests name it; names may be longer here."""
        function = FunctionDefinition.model_construct(
            name=self.name, description=self.description, parameters=self.input_schema, strict=self.strict
        )
        return Tool.model_construct(type="function", function=function)


class ToolChoice(TolerantModel):
    """Which tools the model may or must call."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _names_a_tool(self) -> ToolChoice:
        if self.type == "tool" and self.name is None:
            raise ValueError("tool_choice has the type tool and no name; it must name one of the tools")
        return self

    def strict_calls(self, tools: list[Tool]) -> StrictCalls | None:
        """What the calls that the model may choose to make must follow; None where that may be anything.

        Args:
            tools: of the request.
        """
        if self.type != "auto":
            return None
        return StrictCalls.of([tool.function for tool in tools], is_parallel=not self.disable_parallel_tool_use)

    def forced_calls(self, tools: list[Tool]) -> ForcedCalls | None:
        """The calls that the answer must consist of; None where it may be anything.

        Args:
            tools: of the request; the one that is named is among them.
        """
        functions = [tool.function for tool in tools]
        match self.type:
            case "tool":
                return ForcedCalls([function for function in functions if function.name == self.name], 1)
            case "any":
                return ForcedCalls(functions, 1 if self.disable_parallel_tool_use else MAX_CALLS)
        return None
