"""Function tools in the form of the Responses API. They become those of the chat route."""

from typing import Annotated, Any, Literal

from pydantic import Field

from server.protocol.base_models import bounded
from server.protocol.custom_tools import LenientTool
from server.protocol.structured_outputs import TOOL_NAME_PATTERN
from server.protocol.tools import FunctionDefinition

MAX_CALLERS = 16  # of one tool


Callers = Annotated[list[str], Field(fail_fast=True), bounded("allowed_callers", MAX_CALLERS)]


class FunctionTool(LenientTool):
    """A function by its name and the JSON schema of its arguments."""

    type: Literal["function"]
    name: Annotated[str, Field(pattern=TOOL_NAME_PATTERN)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None  # calls that must be made follow the schema always
    # For other servers, before or after a call; not part of the prompt. A tool whose loading is deferred is offered.
    defer_loading: bool | None = None
    allowed_callers: Callers | None = None
    output_schema: dict[str, Any] | None = None

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
