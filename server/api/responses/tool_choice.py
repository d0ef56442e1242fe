"""The parameter `tool_choice`: a word, one tool, or some of the tools."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from server.protocol.base_models import LenientModel
from server.protocol.errors import invalid_value, shorten
from server.protocol.tool_choice import WORDS, flat
from server.protocol.tools import MAX_TOOLS

_NAMED = ("function", "custom", "namespace")  # kinds of which there may be several tools


class ChosenTool(LenientModel):
    """One tool: a function, a custom tool or a namespace by its name, any other by its type."""

    type: str
    name: str | None = None
    namespace: str | None = None

    def to_wire(self) -> dict[str, Any]:
        """The choice in the response object."""
        return self.model_dump(exclude_none=True)

    @property
    def shown(self) -> str:
        """The tool in the sentence of an error."""
        return shorten(self.type) if self.name is None else f"the {self.type} {shorten(self.name)}"


class AllowedTools(LenientModel):
    """Some of the tools."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"] = "auto"
    tools: Annotated[list[ChosenTool], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]

    def to_wire(self) -> dict[str, Any]:
        """The choice in the response object."""
        return {"type": self.type, "mode": self.mode, "tools": [tool.to_wire() for tool in self.tools]}


def _known_choice(value: Any) -> Any:
    """Rejects what is neither a word that is known nor an object with a type, in the form of any API."""
    value = flat(value)
    if isinstance(value, dict) and isinstance(value.get("type"), str):
        if value["type"] in _NAMED and not isinstance(value.get("name"), str):
            raise invalid_value(
                f"tool_choice is {shorten(value)}; the type {shorten(value['type'])} needs a name", "tool_choice"
            )
        return value
    if value in WORDS:
        return value
    raise invalid_value(
        f'tool_choice is {shorten(value)}; it must be "none", "auto", "required", or an object of the type of a tool '
        'or of the type "allowed_tools"',
        "tool_choice",
    )


def _tag_of(choice: Any) -> str:
    if isinstance(choice, str):
        return "<word>"
    kind = choice["type"] if isinstance(choice, dict) else choice.type
    return "<allowed_tools>" if kind == "allowed_tools" else "<tool>"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<word>")]
    | Annotated[ChosenTool, Tag("<tool>")]
    | Annotated[AllowedTools, Tag("<allowed_tools>")],
    Discriminator(_tag_of),
    BeforeValidator(_known_choice),
]
