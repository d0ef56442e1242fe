"""OpenAI's custom tools, whose input is a text, perhaps of a grammar. Models know them as functions with one string."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field, model_validator

from server.protocol.lark_pattern import LarkError, pattern_of_lark
from server.protocol.structured_outputs import TOOL_NAME_PATTERN
from server.protocol.tools import FunctionDefinition, LenientTool, Tool

INPUT = "input"  # the argument that holds the text
MAX_DEFINITION_CHARS = 64 << 10
_LANGUAGES = {"lark": "Lark grammar", "regex": "regular expression"}


class CustomFormat(LenientTool):
    """The form of a custom tool's input: any text, or a grammar. The chat route nests the grammar's parts."""

    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: Annotated[str, Field(min_length=1, max_length=MAX_DEFINITION_CHARS)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, value: Any) -> Any:
        if isinstance(value, dict) and isinstance(value.get("grammar"), dict):
            return {**{name: part for name, part in value.items() if name != "grammar"}, **value["grammar"]}
        return value

    @model_validator(mode="after")
    def _grammar_can_be_enforced(self) -> CustomFormat:
        if self.type == "grammar":
            missing = [name for name in ("syntax", "definition") if getattr(self, name) is None]
            if missing:
                raise ValueError(f"the format of a custom tool has no {missing[0]}; the type grammar needs one")
            try:
                _ = self.pattern
            except LarkError as error:
                raise ValueError(f"the grammar of a custom tool cannot be used: {error}") from error
        return self

    @cached_property
    def pattern(self) -> str | None:
        """The regular expression of the whole input; None where it may be any text."""
        if self.type == "text" or self.definition is None:
            return None
        if self.syntax == "lark":
            return f"^(?:{pattern_of_lark(self.definition)})$"
        body = self.definition.removeprefix("^")
        has_end = body.endswith("$") and not body.endswith("\\$")
        return f"^(?:{body[:-1] if has_end else body})$"

    @property
    def description(self) -> str:
        """What the model is told of the form."""
        if self.pattern is None or self.syntax is None:
            return ""
        return f"The input must match this {_LANGUAGES[self.syntax]}:\n{self.definition}"


class CustomDefinition(LenientTool):
    """A custom tool by its name and the form of its input."""

    name: Annotated[str, Field(pattern=TOOL_NAME_PATTERN)]
    description: str | None = None
    format: CustomFormat | None = None

    def to_function(self, name: str | None = None) -> FunctionDefinition:
        """The function whose calls a grammar makes.

        Args:
            name: by which the model knows it.
        """
        pattern = None if self.format is None else self.format.pattern
        form = {"type": "string"} if pattern is None else {"type": "string", "pattern": pattern}
        return FunctionDefinition.model_construct(
            name=name or self.name, description=self.description, parameters=_with_input(form), strict=True
        )

    def to_tool(self, name: str | None = None) -> Tool:
        """The function that the prompt describes; its grammar stands there as it was written."""
        parts = [self.description or "", "" if self.format is None else self.format.description]
        function = FunctionDefinition.model_construct(
            name=name or self.name,
            description="\n\n".join(part for part in parts if part) or None,
            parameters=_with_input({"type": "string"}),
        )
        return Tool.model_construct(type="function", function=function)


class CustomTool(LenientTool):
    """A custom tool in the form of the chat route."""

    type: Literal["custom"]
    custom: CustomDefinition

    @cached_property
    def function(self) -> FunctionDefinition:
        """The function whose calls a grammar makes."""
        return self.custom.to_function()

    def to_template(self) -> dict[str, Any]:
        """The tool in the form that chat templates expect."""
        return self.custom.to_tool().to_template()


def _with_input(form: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {INPUT: form}, "required": [INPUT], "additionalProperties": False}


def arguments_of(text: str) -> str:
    """The arguments of a custom tool's call as a function's."""
    return orjson.dumps({INPUT: text}).decode()
