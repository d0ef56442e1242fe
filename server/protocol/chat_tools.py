"""The tools of a chat: functions and custom tools in the forms of all APIs, and those that are left out."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Discriminator, Field, Tag, ValidationInfo, model_validator

from server.protocol.base_models import LenientModel, bounded
from server.protocol.custom_tools import CustomDefinition, CustomTool
from server.protocol.structured_outputs import TOOL_NAME_PATTERN
from server.protocol.tools import (
    MAX_TOOLS,
    SCHEMA_NAMES,
    FunctionDefinition,
    LenientTool,
    Tool,
    as_schema,
    with_parameters,
)


class FlatTool(LenientTool):
    """A function whose name stands beside its type, as Responses and Anthropic's API have it."""

    type: Literal["function", "custom"] | None = "function"
    name: Annotated[str, Field(pattern=TOOL_NAME_PATTERN)]
    description: str | None = None
    parameters: Annotated[dict[str, Any], BeforeValidator(as_schema, json_schema_input_type=dict[str, Any])] | None = (
        None
    )
    strict: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _no_more_names_than_fields(cls, value: Any, info: ValidationInfo) -> Any:  # overrides LenientPart's
        return cls._with_known_names(with_parameters(value), info)

    @cached_property
    def function(self) -> FunctionDefinition:
        """The function as chats have it."""
        return FunctionDefinition.model_construct(
            name=self.name, description=self.description, parameters=self.parameters, strict=self.strict
        )

    def to_template(self) -> dict[str, Any]:
        """The tool in the form that chat templates expect."""
        return Tool.model_construct(type="function", function=self.function).to_template()


class FlatCustomTool(CustomDefinition):
    """A custom tool in the form of Responses."""

    type: Literal["custom"]

    @cached_property
    def function(self) -> FunctionDefinition:
        """The function whose calls a grammar makes."""
        return self.to_function()

    def to_template(self) -> dict[str, Any]:
        """The tool in the form that chat templates expect."""
        return self.to_tool().to_template()


class OtherTool(LenientModel):
    """A tool that only the servers of its maker run: it is not part of the prompt."""

    type: str


OfferedTool: TypeAlias = Tool | FlatTool | CustomTool | FlatCustomTool


def _tag_of(tool: Any) -> str:
    if not isinstance(tool, dict):
        return next((tag for kind, tag in _TAGS if isinstance(tool, kind)), "<function>")
    kind = tool.get("type") or "function"
    is_flat = "name" in tool
    if kind == "function":
        return "<flat>" if is_flat and "function" not in tool else "<function>"
    if kind == "custom":
        is_function = is_flat and any(name in tool for name in ("parameters", *SCHEMA_NAMES))
        return "<flat>" if is_function else "<flat custom>" if is_flat and "custom" not in tool else "<custom>"
    return "<other>"


_TAGS = (
    (Tool, "<function>"), (FlatTool, "<flat>"), (CustomTool, "<custom>"), (FlatCustomTool, "<flat custom>"),
    (OtherTool, "<other>"),
)  # fmt: skip

# The tags of a union's members have angle brackets, which keep them out of the paths in errors.
ChatTool = Annotated[
    Annotated[Tool, Tag("<function>")]
    | Annotated[FlatTool, Tag("<flat>")]
    | Annotated[CustomTool, Tag("<custom>")]
    | Annotated[FlatCustomTool, Tag("<flat custom>")]
    | Annotated[OtherTool, Tag("<other>")],
    Discriminator(_tag_of),
]
ChatTools = Annotated[list[ChatTool], Field(fail_fast=True), bounded("tools", MAX_TOOLS)]


def offered(tools: Iterable[OfferedTool | OtherTool] | None) -> list[OfferedTool]:
    """The tools that the model may call here."""
    return [tool for tool in tools or () if not isinstance(tool, OtherTool)]


def left_out(tools: Iterable[OfferedTool | OtherTool] | None) -> list[str]:
    """The types of the others."""
    return [tool.type for tool in tools or () if isinstance(tool, OtherTool)]
