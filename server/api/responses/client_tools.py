"""All kinds of tools of the Responses API: those that the client runs, and those that only OpenAI's servers run."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag, TypeAdapter

from server.api.responses.function_tools import Callers, FunctionTool, flat_function
from server.protocol.base_models import LenientModel, bounded
from server.protocol.custom_tools import CustomDefinition
from server.protocol.errors import invalid_value, shorten
from server.protocol.tools import MAX_TOOLS, LenientTool

NAMESPACE_PATTERN = r"^[A-Za-z0-9_.:/-]{1,128}$"


class CustomTool(CustomDefinition):
    """A tool whose input is a text, perhaps of a grammar."""

    type: Literal["custom"]
    defer_loading: bool | None = None

    def to_wire(self) -> dict[str, Any]:
        """The tool in the response object."""
        form: dict[str, Any] = {"type": "text"} if self.format is None else self.format.model_dump(exclude_none=True)
        return {"type": "custom", "name": self.name, "description": self.description, "format": form}


class OtherTool(LenientModel):
    """A tool that only OpenAI's servers run, or one that is not known: it is not part of the prompt."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    type: str

    def to_wire(self) -> dict[str, Any]:
        """The tool in the response object, as the client has sent it."""
        return self.model_dump()


def _member_tag(tool: Any) -> str:
    kind = _kind_of(tool)
    return f"<{kind}>" if kind in ("function", "custom") else "<other>"


Member = Annotated[
    Annotated[FunctionTool, Tag("<function>")]
    | Annotated[CustomTool, Tag("<custom>")]
    | Annotated[OtherTool, Tag("<other>")],
    Discriminator(_member_tag),
]


def _as_flat(value: Any) -> Any:
    return [flat_function(tool) for tool in value] if isinstance(value, list) else value


class NamespaceTool(LenientTool):
    """Several functions and custom tools under a common name."""

    type: Literal["namespace"]
    name: Annotated[str, Field(pattern=NAMESPACE_PATTERN)]
    description: str | None = None
    tools: Annotated[list[Member], Field(fail_fast=True), bounded("tools", MAX_TOOLS), BeforeValidator(_as_flat)]

    def to_wire(self) -> dict[str, Any]:
        """The tool in the response object."""
        members = [tool.to_wire() for tool in self.tools]
        return {"type": "namespace", "name": self.name, "description": self.description, "tools": members}


class LocalShellTool(LenientTool):
    """The shell of the client's machine, one command in each call."""

    type: Literal["local_shell"]

    def to_wire(self) -> dict[str, Any]:
        """The tool in the response object."""
        return {"type": "local_shell"}


class ShellTool(LenientTool):
    """A shell, several commands in each call. That of a container is OpenAI's."""

    type: Literal["shell"]
    environment: dict[str, Any] | None = None
    allowed_callers: Callers | None = None

    @property
    def is_local(self) -> bool:
        return self.environment is None or self.environment.get("type") == "local"

    def to_wire(self) -> dict[str, Any]:
        """The tool in the response object."""
        return {"type": "shell", "environment": self.environment or {"type": "local"}}


class ApplyPatchTool(LenientTool):
    """Changes of files, which the client makes."""

    type: Literal["apply_patch"]
    allowed_callers: Callers | None = None

    def to_wire(self) -> dict[str, Any]:
        """The tool in the response object."""
        return {"type": "apply_patch"}


ClientTool = FunctionTool | CustomTool | NamespaceTool | LocalShellTool | ShellTool | ApplyPatchTool | OtherTool

_KINDS = ("function", "custom", "namespace", "local_shell", "shell", "apply_patch")


def _kind_of(tool: Any) -> str:
    return str(tool.get("type") if isinstance(tool, dict) else tool.type)


def _tag_of(tool: Any) -> str:
    kind = _kind_of(tool)
    return f"<{kind}>" if kind in _KINDS else "<other>"


def _with_types(value: Any) -> Any:
    """Checks the number of tools and their types before anything else of them; functions are flat then."""
    if not isinstance(value, list):
        return value
    if len(value) > MAX_TOOLS:
        raise ValueError(f"tools has {len(value)} entries; at most {MAX_TOOLS} are allowed")
    tools = [flat_function(tool) for tool in value]
    for at, tool in enumerate(tools):
        if not isinstance(tool, dict) or not isinstance(tool.get("type"), str):
            raise invalid_value(
                f'tools[{at}] is {shorten(tool)}; it must be an object with a type, such as "function"', f"tools[{at}]"
            )
    return tools


# The tags of a union's members have angle brackets, which keep them out of the paths in errors.
ClientTools = Annotated[
    list[
        Annotated[
            Annotated[FunctionTool, Tag("<function>")]
            | Annotated[CustomTool, Tag("<custom>")]
            | Annotated[NamespaceTool, Tag("<namespace>")]
            | Annotated[LocalShellTool, Tag("<local_shell>")]
            | Annotated[ShellTool, Tag("<shell>")]
            | Annotated[ApplyPatchTool, Tag("<apply_patch>")]
            | Annotated[OtherTool, Tag("<other>")],
            Discriminator(_tag_of),
        ]
    ],
    Field(fail_fast=True),
    BeforeValidator(_with_types),
]


@cache
def _reader() -> TypeAdapter[list[ClientTool]]:
    return TypeAdapter(ClientTools)


def read_tools(shaped: list[dict[str, Any]]) -> list[ClientTool]:
    """The tools that `to_wire` has made objects of."""
    return _reader().validate_python(shaped)
