"""Tools in the form of the Responses API. Functions are the only kind; they become those of the chat route."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from server.protocol.base_models import StrictModel, bounded
from server.protocol.errors import ApiError, invalid_value, shorten
from server.protocol.structured_outputs import NAME_PATTERN
from server.protocol.tools import MAX_TOOLS, FunctionDefinition, Tool

MAX_CALLERS = 16  # of one tool


class FunctionTool(StrictModel):
    """A function by its name and the JSON schema of its arguments."""

    type: Literal["function"]
    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None  # calls that must be made follow the schema always
    # For other servers, before or after a call; not part of the prompt.
    defer_loading: Literal[False] | None = None
    allowed_callers: (
        Annotated[list[Literal["direct"]], Field(fail_fast=True), bounded("allowed_callers", MAX_CALLERS)] | None
    ) = None
    output_schema: dict[str, Any] | None = None

    def to_tool(self) -> Tool:
        function = FunctionDefinition(
            name=self.name, description=self.description, parameters=self.parameters, strict=self.strict
        )
        return Tool(type="function", function=function)

    def to_wire(self) -> dict[str, Any]:
        """The tool in the response object."""
        return {
            "type": "function",
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
            "strict": self.strict,
        }


class NamedFunction(StrictModel):
    """A `tool_choice` of one function by its name."""

    type: Literal["function"]
    name: str


class AllowedTools(StrictModel):
    """A `tool_choice` among some of the tools."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedFunction], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]


def _only_functions(value: Any) -> Any:
    """Rejects tools that are no functions by their types, before anything else of them is validated."""
    if not isinstance(value, list):
        return value
    if len(value) > MAX_TOOLS:
        raise ValueError(f"tools has {len(value)} entries; at most {MAX_TOOLS} are allowed")
    for at, tool in enumerate(value):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if isinstance(kind, str) and kind != "function":
            raise ApiError(
                f"tools[{at}] is {shorten(kind)}; it is not supported by this server, which has functions alone",
                param=f"tools[{at}].type",
                code="unsupported_parameter",
            )
    return value


def _known_choice(value: Any) -> Any:
    """Rejects choices that this server does not support, and unknown words."""
    kind = value.get("type") if isinstance(value, dict) else value
    if kind not in ("none", "auto", "required", "function", "allowed_tools") or (
        isinstance(value, dict) != (kind in ("function", "allowed_tools"))
    ):
        raise invalid_value(
            f'tool_choice is {shorten(value)}; it must be "none", "auto", "required", an object of the type '
            '"function" with a name, or one of the type "allowed_tools"',
            "tool_choice",
        )
    return value


FunctionTools = Annotated[list[FunctionTool], Field(fail_fast=True), BeforeValidator(_only_functions)]
FunctionChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<word>")]
    | Annotated[NamedFunction, Tag("<function>")]
    | Annotated[AllowedTools, Tag("<allowed_tools>")],
    Discriminator(lambda choice: f"<{choice['type']}>" if isinstance(choice, dict) else "<word>"),
    BeforeValidator(_known_choice),
]
