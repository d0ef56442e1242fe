"""Function tools in the form of the Responses API. They become those of the chat route."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from server.protocol.base_models import bounded
from server.protocol.structured_outputs import TOOL_NAME_PATTERN
from server.protocol.tools import SCHEMA_NAMES, FunctionDefinition, LenientTool, as_schema, with_parameters

MAX_CALLERS = 16  # of one tool


Callers = Annotated[list[str], Field(fail_fast=True), bounded("allowed_callers", MAX_CALLERS)]


def flat_function(tool: Any) -> Any:
    """A function in the form of this API, if it has that of chats, in which its parts have an object of their own, or
    that of Anthropic's API, in which it may have no type, or of a custom tool with a schema."""
    if not isinstance(tool, dict):
        return tool
    parts = tool.get("function")
    if tool.get("type", "function") == "function" and isinstance(parts, dict) and "name" not in tool:
        return {"type": "function", **{name: part for name, part in tool.items() if name != "function"}, **parts}
    has_schema = any(name in tool for name in ("parameters", *SCHEMA_NAMES))
    if "name" in tool and has_schema and tool.get("type") in (None, "custom"):
        return {**tool, "type": "function"}
    return tool


class FunctionTool(LenientTool):
    """A function by its name and the JSON schema of its arguments."""

    type: Literal["function"]
    name: Annotated[str, Field(pattern=TOOL_NAME_PATTERN)]
    description: str | None = None
    parameters: Annotated[dict[str, Any], BeforeValidator(as_schema, json_schema_input_type=dict[str, Any])] | None = (
        None
    )
    strict: bool | None = None  # calls that must be made follow the schema always
    # For other servers, before or after a call; not part of the prompt. A tool whose loading is deferred is offered.
    defer_loading: bool | None = None
    allowed_callers: Callers | None = None
    output_schema: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _no_more_names_than_fields(cls, value: Any, info: ValidationInfo) -> Any:  # overrides LenientPart's
        return cls._with_known_names(with_parameters(value), info)

    def to_function(self, name: str) -> FunctionDefinition:
        """The function by the name that the model knows."""
        return FunctionDefinition.model_validate(
            {"name": self.name, "description": self.description, "parameters": self.parameters, "strict": self.strict}
        ).model_copy(update={"name": name})

    def to_wire(self) -> dict[str, Any]:
        """The tool in the response object."""
        return {
            "type": "function",
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
            "strict": self.strict,
        }
