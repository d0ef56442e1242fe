"""The tools of a request as the model knows them: functions, each with a name of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

from server.api.responses.client_tools import (
    ApplyPatchTool,
    ClientTool,
    CustomTool,
    LocalShellTool,
    NamespaceTool,
    OtherTool,
    ShellTool,
)
from server.api.responses.function_tools import FunctionTool
from server.api.responses.tool_choice import AllowedTools, ChosenTool, ToolChoice
from server.protocol.errors import invalid_value
from server.protocol.tools import CallsTools, FunctionDefinition, Tool, ToolPolicy

MAX_OFFERED = 512  # functions, those of namespaces and of the input among them

Kind: TypeAlias = Literal["function", "custom", "local_shell", "shell", "apply_patch"]

LOCAL_SHELL = FunctionDefinition(
    name="local_shell",
    description="Runs one command on the user's machine and returns its output.",
    parameters={
        "type": "object",
        "properties": {
            "command": {"type": "array", "items": {"type": "string"}, "minItems": 1},
            "working_directory": {"type": "string"},
            "timeout_ms": {"type": "integer", "minimum": 1},
        },
        "required": ["command"],
        "additionalProperties": False,
    },
    strict=True,
)
SHELL = FunctionDefinition(
    name="shell",
    description="Runs commands in the user's shell, one after the other, and returns what each of them has written.",
    parameters={
        "type": "object",
        "properties": {
            "commands": {"type": "array", "items": {"type": "string"}, "minItems": 1},
            "timeout_ms": {"type": "integer", "minimum": 1},
            "max_output_length": {"type": "integer", "minimum": 1},
        },
        "required": ["commands"],
        "additionalProperties": False,
    },
    strict=True,
)
APPLY_PATCH = FunctionDefinition(
    name="apply_patch",
    description=(
        "Creates, changes or deletes one file. The diff has a line @@ before each place that changes, and lines that "
        "begin with a space (unchanged), - (removed) or + (added); in a new file every line begins with +."
    ),
    parameters={
        "type": "object",
        "properties": {
            "type": {"enum": ["create_file", "update_file", "delete_file"]},
            "path": {"type": "string"},
            "diff": {"type": "string"},
        },
        "required": ["type", "path"],
        "additionalProperties": False,
    },
    strict=True,
)


class OfferedTool(NamedTuple):
    """One function that the model may call, and the tool that it stands for."""

    kind: Kind
    name: str  # that the client gave, or the type of the tool
    namespace: str | None
    function: FunctionDefinition  # by the name that the model knows; its calls follow this schema
    described: FunctionDefinition  # in the prompt

    def is_chosen_by(self, choice: ChosenTool) -> bool:
        """Whether a `tool_choice` means this tool."""
        if choice.type == "namespace":
            return self.namespace == choice.name
        if choice.type != self.kind or choice.namespace not in (None, self.namespace):
            return False
        return self.kind not in ("function", "custom") or choice.name in (self.name, self.function.name)


def joined_name(namespace: str | None, name: str) -> str:
    """The name by which the model knows a tool of a namespace."""
    return name if namespace is None else f"{namespace.rstrip('_')}__{name}"


class OfferedTools(CallsTools):
    """The tools of a request, and which of them may be called.

    Args:
        tools: those of the request first.
        more: those of items of the input, which take the place of earlier ones with their name.

    Raises:
        ApiError, ValueError: a name is given twice, or `tool_choice` names none of the tools.
    """

    def __init__(
        self,
        tools: Sequence[ClientTool],
        more: Iterable[ClientTool] = (),
        choice: ToolChoice | None = None,
        *,
        is_parallel: bool = True,
    ) -> None:
        self._choice = choice
        self._is_parallel = is_parallel
        self._by_place: dict[tuple[str, str | None, str], OfferedTool] = {}
        self.left_out: list[str] = []  # types
        for tool in tools:
            self._add(tool, is_once=True)
        for tool in more:
            self._add(tool, is_once=False)
        self._by_name = self._named()
        self._check()

    def _add(self, tool: ClientTool, *, is_once: bool) -> None:
        for kind, namespace, member in _members(tool):
            if isinstance(member, OtherTool) or (isinstance(member, ShellTool) and not member.is_local):
                self.left_out.append(member.type)
                continue
            name = member.name if isinstance(member, FunctionTool | CustomTool) else member.type
            place = kind, namespace, name
            if is_once and place in self._by_place:
                raise ValueError("tools has two functions of the same name; each name must stand there once")
            model_name = joined_name(namespace, name)
            self._by_place.pop(place, None)
            self._by_place[place] = OfferedTool(kind, name, namespace, *_functions_of(member, model_name))
            if len(self._by_place) > MAX_OFFERED:
                raise ValueError(f"tools has more than {MAX_OFFERED} functions, those of namespaces among them")

    def _named(self) -> dict[str, OfferedTool]:
        """The tools by names that are different: equal ones of different kinds get a number."""
        named: dict[str, OfferedTool] = {}
        for place, tool in self._by_place.items():
            name, number = tool.function.name, 1
            while name in named:
                number += 1
                name = f"{tool.function.name}_{number}"
            if number > 1:
                renamed = {"name": name}
                tool = tool._replace(
                    function=tool.function.model_copy(update=renamed),
                    described=tool.described.model_copy(update=renamed),
                )
                self._by_place[place] = tool
            named[name] = tool
        return named

    def _check(self) -> None:
        chosen = self._choice.tools if isinstance(self._choice, AllowedTools) else [self._choice]
        for one in chosen:
            if not isinstance(one, ChosenTool) or self.is_left_out(one):
                continue
            if not any(tool.is_chosen_by(one) for tool in self._by_name.values()):
                raise invalid_value(f"tool_choice names {one.shown}, which is not among the tools", "tool_choice")
        self.check_tools(list(self._by_name), ())

    def is_left_out(self, choice: ChosenTool) -> bool:
        """Whether a choice means a tool that cannot be called here."""
        return choice.type in self.left_out

    @property
    def ignores_choice(self) -> bool:
        """Whether `tool_choice` means tools that cannot be called here."""
        chosen = self._choice.tools if isinstance(self._choice, AllowedTools) else [self._choice]
        is_left_out = any(isinstance(one, ChosenTool) and self.is_left_out(one) for one in chosen)
        return is_left_out or (self._choice == "required" and not self._by_name and bool(self.left_out))

    @cached_property
    def tool_policy(self) -> ToolPolicy:
        choice, tools = self._choice, list(self._by_name.values())
        match choice:
            case ChosenTool():
                meant = [tool.function for tool in tools if tool.is_chosen_by(choice)]
                if meant:
                    return ToolPolicy(meant, "required", self._is_parallel and choice.type == "namespace")
                return ToolPolicy([tool.function for tool in tools], "auto", self._is_parallel)
            case AllowedTools(mode=mode):
                functions = [tool.function for tool in self._allowed(tools)]
                return ToolPolicy(functions, mode if functions else "auto", self._is_parallel)
            case "none" | "required" if not self.ignores_choice:
                return ToolPolicy([tool.function for tool in tools], choice, self._is_parallel)
        return ToolPolicy([tool.function for tool in tools], "auto", self._is_parallel)

    def _allowed(self, tools: Sequence[OfferedTool]) -> list[OfferedTool]:
        if not isinstance(self._choice, AllowedTools):
            return list(tools)
        return [tool for tool in tools if any(tool.is_chosen_by(one) for one in self._choice.tools)]

    @property
    def prompt_tools(self) -> list[dict[str, Any]]:
        """The tools in the form that chat templates expect."""
        return [
            Tool.model_construct(type="function", function=tool.described).to_template()
            for tool in self._allowed(list(self._by_name.values()))
        ]

    @property
    def schemas(self) -> Mapping[str, Any]:
        """The schemas of the arguments, by the names that the model knows."""
        return {name: tool.function.parameters for name, tool in self._by_name.items()}

    def tool_of(self, model_name: str) -> OfferedTool | None:
        """The tool that the model means by a name; None where it has made the name up."""
        found = self._by_name.get(model_name)
        if found is not None:
            return found
        alike = [tool for tool in self._by_name.values() if tool.namespace is not None and tool.name == model_name]
        return alike[0] if len(alike) == 1 else None

    def model_name(self, kind: Kind, name: str, namespace: str | None = None) -> str:
        """The name by which the model knows a tool of earlier calls, which need not be offered any more."""
        found = self._by_place.get((kind, namespace, name))
        return joined_name(namespace, name) if found is None else found.function.name


def _members(tool: ClientTool) -> Iterable[tuple[Kind, str | None, ClientTool]]:
    """The tools that one entry has, with their kinds and namespaces."""
    match tool:
        case NamespaceTool():
            for member in tool.tools:
                yield "custom" if isinstance(member, CustomTool) else "function", tool.name, member
        case OtherTool():
            yield "function", None, tool
        case _:
            yield tool.type, None, tool


def _functions_of(tool: ClientTool, name: str) -> tuple[FunctionDefinition, FunctionDefinition]:
    """The function whose calls a grammar makes, and the one that the prompt describes."""
    match tool:
        case FunctionTool():
            function = tool.to_function(name)
        case CustomTool():
            return tool.to_function(name), tool.to_tool(name).function
        case LocalShellTool():
            function = LOCAL_SHELL
        case ShellTool():
            function = SHELL
        case ApplyPatchTool():
            function = APPLY_PATCH
        case _:
            raise TypeError(tool)
    return function, function
