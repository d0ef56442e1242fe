"""OpenAI's tools and tool calls, and the JSON schemas of calls that must follow them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple

import orjson
from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from server.protocol.base_models import LenientPart, StrictModel
from server.protocol.errors import invalid_value, shorten
from server.protocol.json_limits import is_deeper, is_longer
from server.protocol.structured_outputs import TOOL_NAME_PATTERN, Grammar, GrammarKind

MAX_TOOLS = 512  # of one request; agents with several MCP servers send two hundred and more
MAX_CALLS = 16  # of one answer that must call; a small model would go on for ever
MAX_DEPTH = 100  # of lists and objects in a schema, or in the arguments of a call
LARGE_SCHEMAS = 32 << 10  # bytes of a request's schemas; larger ones become grammars without their words
_WORDS = frozenset({"title", "description", "$comment", "default", "examples", "deprecated", "markdownDescription"})
_NAMED = frozenset({"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"})
_VALUES = frozenset({"const", "dependentRequired", "enum"})  # keywords without schemas
_EMPTY = {"type": "object", "properties": {}}
_ANY_OBJECT = {"type": "object"}


def as_schema(value: Any) -> Any:
    """Rejects a schema that is too deep for templates and grammars, which walk through it.

    In PHP, an object without entries becomes an empty list.
    """
    if value == []:
        return {}
    if isinstance(value, dict) and value.get("properties") == []:
        value = {**value, "properties": {}}
    if is_deeper(value, MAX_DEPTH):
        raise ValueError(f"the schema of a tool is nested deeper than {MAX_DEPTH} levels, the limit")
    return value


class LenientTool(LenientPart):
    """The base class of tools."""

    PATH = "tools[]."


SCHEMA_NAMES = ("input_schema", "inputSchema")  # Anthropic's and MCP's


def with_parameters(value: Any) -> Any:
    """A function whose schema has its name in OpenAI's API, whichever one it had."""
    if not isinstance(value, dict) or value.get("parameters") is not None:
        return value
    name = next((name for name in SCHEMA_NAMES if name in value), None)
    return value if name is None else {**_without(value, name), "parameters": value[name]}


def _without(value: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: part for key, part in value.items() if key != name}


class FunctionDefinition(LenientPart):
    """A function by its name and the JSON schema of its arguments."""

    PATH = "tools[].function."

    name: Annotated[str, Field(pattern=TOOL_NAME_PATTERN)]
    description: str | None = None
    parameters: Annotated[dict[str, Any], BeforeValidator(as_schema, json_schema_input_type=dict[str, Any])] | None = (
        None
    )
    strict: bool | None = None  # calls that must be made follow the schema always

    @model_validator(mode="before")
    @classmethod
    def _no_more_names_than_fields(cls, value: Any, info: ValidationInfo) -> Any:  # overrides LenientPart's
        return cls._with_known_names(with_parameters(value), info)


class Tool(LenientTool):
    """A tool; functions are the only kind."""

    type: Literal["function"] = "function"
    function: FunctionDefinition

    def to_template(self) -> dict[str, Any]:
        """The tool in the form that chat templates expect."""
        function: dict[str, Any] = {"name": self.function.name, "description": self.function.description or ""}
        function["parameters"] = self.function.parameters or _EMPTY
        return {"type": "function", "function": function}


def as_arguments(value: Any) -> Any:
    """The text of a call's arguments, which some clients send as an object, or leave out where there are none.

    In PHP, an object without entries becomes an empty list.
    """
    if value is None or value == []:
        return ""
    if not isinstance(value, dict):
        return value
    if is_deeper(value, MAX_DEPTH):
        raise ValueError(f"the arguments of a call are nested deeper than {MAX_DEPTH} levels, the limit")
    return orjson.dumps(value).decode()


class FunctionCall(StrictModel):
    """A call's name, and its arguments as the text of a JSON object."""

    name: str
    arguments: Annotated[str, BeforeValidator(as_arguments, json_schema_input_type=str | dict[str, Any])] = ""

    @model_validator(mode="before")
    @classmethod
    def _as_libraries_send_it(cls, value: Any) -> Any:
        return {name: value[name] for name in cls.model_fields if name in value} if isinstance(value, dict) else value


class ToolCall(StrictModel):
    """A call in an assistant's message."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None  # of a stream's deltas, which some clients hand on

    @model_validator(mode="before")
    @classmethod
    def _as_libraries_send_it(cls, value: Any) -> Any:
        """Drops what libraries add, and what is null. A call of a custom tool is a function's with one argument.

        The name and the arguments may stand beside the type, as tools have them in other APIs.
        """
        if isinstance(value, dict) and value.get("type") == "custom" and isinstance(value.get("custom"), dict):
            name, text = value["custom"].get("name"), value["custom"].get("input")
            if not isinstance(text, str):
                raise ValueError(f"the input of a custom tool's call is {shorten(text)}; it must be a string")
            function = {"name": name, "arguments": orjson.dumps({"input": text}).decode()}
            value = {**value, "type": "function", "function": function}
        if isinstance(value, dict) and "function" not in value and "name" in value:
            function = {name: value[name] for name in FunctionCall.model_fields if name in value}
            value = {**value, "function": function}
        if isinstance(value, dict):
            return {name: part for name, part in value.items() if name in cls.model_fields and part is not None}
        return value

    def to_template(self) -> dict[str, Any]:
        """The call in the form that chat templates expect: the arguments are an object, if their text is one."""
        arguments: Any = self.function.arguments
        try:
            text = arguments.strip().removeprefix("\ufeff")
            read = {} if text in ("", "null") else orjson.loads(text)
            arguments = read if isinstance(read, dict) and not is_deeper(read, MAX_DEPTH) else arguments
        except orjson.JSONDecodeError:
            pass  # a call that was cut off
        return {
            "id": self.id or "",
            "type": "function",
            "function": {"name": self.function.name, "arguments": arguments},
        }


def _schema_of(tool: FunctionDefinition) -> dict[str, Any]:
    """The schema of a tool's arguments; any object for a tool that says nothing of them."""
    return _ANY_OBJECT if tool.parameters is None else tool.parameters or _EMPTY


def _without_words(tool: FunctionDefinition) -> FunctionDefinition:
    return tool if not tool.parameters else tool.model_copy(update={"parameters": _silent(tool.parameters)})


def _silent(schema: Any) -> Any:
    """A schema without what it says in words, which no value is judged by."""
    if isinstance(schema, list):
        return [_silent(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    silent: dict[str, Any] = {}
    for key, part in schema.items():
        if key in _NAMED and isinstance(part, dict):
            silent[key] = {name: _silent(of_name) for name, of_name in part.items()}
        elif key not in _WORDS:
            silent[key] = part if key in _VALUES else _silent(part)
    return silent


def arguments_schema(tool: FunctionDefinition) -> dict[str, Any]:
    """The schema of a call's arguments, which are an object always."""
    schema = _schema_of(tool)
    return schema if "type" in schema else {"type": "object", **schema}


class OfferedCalls(NamedTuple):
    """Calls that a model may make; their arguments follow those schemas that can be enforced."""

    tools: Sequence[FunctionDefinition]
    is_parallel: bool

    def is_longer(self, most: int) -> bool:
        """Whether the schemas have more than so many characters and values."""
        return is_longer([tool.parameters for tool in self.tools], most)

    def without_words(self) -> OfferedCalls:
        """The same calls, with schemas that say nothing in words."""
        return self._replace(tools=[_without_words(tool) for tool in self.tools])

    def as_strict(self) -> StrictCalls:
        """The same calls, all of whose arguments follow their schemas."""
        return StrictCalls.of_all(self.tools, MAX_CALLS if self.is_parallel else 1)


class StrictCalls(NamedTuple):
    """Calls that a model may make, where at least one of the tools is strict."""

    tools: Sequence[FunctionDefinition]
    most: int  # calls in one answer

    @classmethod
    def of(cls, tools: Sequence[FunctionDefinition], *, is_parallel: bool) -> StrictCalls | None:
        """The calls of these tools; None where no tool is strict."""
        return cls(tools, MAX_CALLS if is_parallel else 1) if any(tool.strict for tool in tools) else None

    @classmethod
    def of_all(cls, tools: Sequence[FunctionDefinition], most: int) -> StrictCalls:
        """Calls of these tools, as if all of them were strict."""
        return cls([tool.model_copy(update={"strict": True}) for tool in tools], most)

    def is_longer(self, most: int) -> bool:
        """Whether the schemas have more than so many characters and values."""
        return is_longer([tool.parameters for tool in self.tools if tool.strict], most)

    def arguments_of(self, tool: FunctionDefinition) -> dict[str, Any]:
        """The schema that a call's arguments follow; those of a tool that is not strict may be any object."""
        return _schema_of(tool) if tool.strict else _ANY_OBJECT

    def without_words(self) -> StrictCalls:
        """The same calls, with schemas that say nothing in words."""
        return self._replace(tools=[_without_words(tool) for tool in self.tools])

    def schema(self, arguments: str) -> dict[str, Any]:
        """The schema of one call as an object of its name and its arguments.

        Args:
            arguments: the key of the arguments.
        """
        return schema_of_calls([(tool.name, self.arguments_of(tool)) for tool in self.tools], arguments)


class ForcedCalls:
    """The calls that an answer must consist of: an array of objects with `name` and `arguments`."""

    def __init__(self, tools: Sequence[FunctionDefinition], most: int) -> None:
        self._tools = tools
        self._most = most

    def to_grammar(self) -> Grammar:
        source = self._source(self._tools)
        if len(source) > LARGE_SCHEMAS:  # much of what agents send are words, which are no part of a grammar
            source = self._source([_without_words(tool) for tool in self._tools])
        return Grammar(GrammarKind.JSON_SCHEMA, source.decode())

    def _source(self, functions: Sequence[FunctionDefinition]) -> bytes:
        tools = [(tool.name, _schema_of(tool)) for tool in functions]
        try:
            return orjson.dumps(array_of_calls(schema_of_calls(tools), self._most))
        except orjson.JSONEncodeError as error:
            raise ValueError(f"{shorten(dict(tools))} cannot be written as JSON: {error}") from error

    def is_longer(self, most: int) -> bool:
        return is_longer([tool.parameters for tool in self._tools], most)


class ToolPolicy(NamedTuple):
    """Which tools a model may or must call: `tools`, `tool_choice` and `parallel_tool_calls` together."""

    tools: Sequence[FunctionDefinition]  # that may be called
    mode: Literal["none", "auto", "required"] = "auto"
    is_parallel: bool = True


class CallsTools:
    """Mixin for requests with tools, which define `tool_policy`."""

    @cached_property
    def tool_policy(self) -> ToolPolicy:
        raise NotImplementedError

    def check_tools(
        self, names: Sequence[str], chosen: Sequence[str], tools: str = "tools", choice: str = "tool_choice"
    ) -> None:
        """Checks `tool_choice` against the tools.

        Args:
            names: of all tools.
            chosen: the names in `tool_choice`.
            tools: the parameter that has the tools.
            choice: the parameter that chooses among them.
        """
        known = set(names)
        if len(known) < len(names):
            raise ValueError(f"{tools} has two functions of the same name; each name must stand there once")
        for name in chosen:
            if name not in known:
                raise invalid_value(
                    f"{choice} names the function {shorten(name)}, which is not among the {tools}", choice
                )
        if self.tool_policy.mode != "required":
            return
        if not names:
            raise invalid_value("tool_choice is required and tools is empty", "tool_choice")

    @property
    def may_call(self) -> bool:
        """Whether tool calls are parsed in the answer."""
        return bool(self.tool_policy.tools) and self.tool_policy.mode != "none"

    @property
    def forced_calls(self) -> ForcedCalls | None:
        """The calls that the answer must consist of; None where it may be anything."""
        policy = self.tool_policy
        if policy.mode != "required":
            return None
        return ForcedCalls(policy.tools, MAX_CALLS if policy.is_parallel else 1)

    @property
    def strict_calls(self) -> StrictCalls | None:
        """The schemas that calls must follow if the model chooses to make any; None where no tool is strict."""
        policy = self.tool_policy
        return StrictCalls.of(policy.tools, is_parallel=policy.is_parallel) if policy.mode == "auto" else None

    @property
    def offered_calls(self) -> OfferedCalls | None:
        """The calls that the model may choose to make; None where it may make none, or must make one."""
        policy = self.tool_policy
        return OfferedCalls(policy.tools, policy.is_parallel) if policy.mode == "auto" and policy.tools else None


def schema_of_calls(tools: Sequence[tuple[str, dict[str, Any]]], arguments: str = "arguments") -> dict[str, Any]:
    """The JSON schema of a call of one of several tools.

    Args:
        tools: names, and the schemas of their arguments.
        arguments: the key of the arguments.

    Returns:
        The schema, which can be written as JSON and has parts that are JSON already.

    Raises:
        JSONEncodeError: a schema is nested too deeply.
    """
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, arguments: {"$ref": f"#/$defs/tool{i}"}},
            "required": ["name", arguments],
            "additionalProperties": False,
        }
        for i, (name, _) in enumerate(tools)
    ]
    definitions = {f"tool{i}": _moved(schema, i) for i, (_, schema) in enumerate(tools)}
    return {**({"anyOf": calls} if len(calls) > 1 else calls[0]), "$defs": definitions}


def array_of_calls(call: dict[str, Any], most: int) -> dict[str, Any]:
    """The JSON schema of from one to `most` calls, of which `call` is the schema of one."""
    items = {name: part for name, part in call.items() if name != "$defs"}
    return {"type": "array", "minItems": 1, "maxItems": most, "items": items, "$defs": call["$defs"]}


def _moved(schema: dict[str, Any], index: int) -> orjson.Fragment:
    """A tool's schema, as JSON, with its references adjusted to its place in the definitions of the whole.

    They are found in the text, which takes a tenth of the time of a walk through the schema. A name in JSON stands
    behind a brace or a comma, and a quotation mark within a text behind a backslash, so nothing else is found.

    Raises JSONEncodeError if the schema is nested too deeply.
    """
    text, place = orjson.dumps(schema), b"#/$defs/tool%d" % index
    for before in (b"{", b","):
        text = text.replace(before + b'"$ref":"#', before + b'"$ref":"' + place)
    return orjson.Fragment(text)
