"""The parameters for structured outputs (`response_format`, `structured_outputs`), and the grammars they ask for."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import orjson
from pydantic import BeforeValidator, Field, model_validator

from sampling.host.params import InvalidParameter
from server.protocol.base_models import StrictModel
from server.protocol.errors import shorten
from server.protocol.json_limits import is_longer
from server.protocol.structural_tags import Structures, Triggers, check_triggers, tags_lark

MAX_CHOICE_TEXTS = 1000
NAME_PATTERN = r"^[A-Za-z0-9_-]{1,64}$"
TOOL_NAME_PATTERN = r"^[A-Za-z0-9_.:/-]{1,128}$"  # as long as Anthropic's, with what MCP servers have in theirs

ANY_OBJECT = '{"type":"object"}'


class GrammarKind(StrEnum):
    """The language of a grammar. The value is its name in a sentence."""

    JSON_SCHEMA = "the JSON schema"
    REGEX = "the regular expression"
    CHOICE = "the choice"
    LARK = "the grammar"
    CALLS = "the grammar of the calls"


class Grammar(NamedTuple):
    """A grammar that an output must match. Equal grammars are compiled once."""

    kind: GrammarKind
    source: str  # of a choice, its strings as JSON; of calls, texts in Lark and schemas by turns, as JSON
    closes_objects: bool = True  # whether objects of a schema have no other properties, unless it says so


def _as_schema(value: Any) -> Any:
    if not isinstance(value, dict | bool | str | None):
        raise ValueError(f"structured_outputs.json is {shorten(value)}; it must be a JSON schema, or its text")
    return value


class JsonSchema(StrictModel):
    """OpenAI's `json_schema`. It is always enforced, whatever `strict` says."""

    # OpenAI wants one, and does nothing with it; clients of llama.cpp leave it out.
    name: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any], Field(alias="schema")]  # pydantic has a `schema` of its own
    strict: bool | None = None


class ResponseFormat(StrictModel):
    """OpenAI's parameter, llama.cpp's shorter form of it (`schema` next to the type json_object), and SGLang's tags."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchema | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    structures: Structures | None = None
    triggers: Triggers | None = None

    @model_validator(mode="after")
    def _schema_where_it_is_asked_for(self) -> ResponseFormat:
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError("response_format has no json_schema; type json_schema needs one")
        if self.type != "json_schema" and self.json_schema is not None:
            raise ValueError(f"response_format has a json_schema, which type {self.type} does not take")
        if self.type != "json_object" and self.schema_ is not None:
            raise ValueError(f"response_format has a schema, which type {self.type} does not take")
        if self.type == "structural_tag":
            if self.structures is None or self.triggers is None:
                raise ValueError("response_format needs structures and triggers with type structural_tag")
            check_triggers(self.structures, self.triggers)
        elif self.structures is not None or self.triggers is not None:
            raise ValueError(f"response_format has structures or triggers, which type {self.type} does not take")
        return self

    def to_grammar(self) -> Grammar | None:
        if self.structures is not None:
            return Grammar(GrammarKind.CALLS, tags_lark(self.structures, self.triggers or ()))
        schema = self.schema_ if self.json_schema is None else self.json_schema.schema_
        if schema is not None:
            return Grammar(GrammarKind.JSON_SCHEMA, _to_json(schema))
        return None if self.type == "text" else Grammar(GrammarKind.JSON_SCHEMA, ANY_OBJECT)

    def is_longer(self, most: int) -> bool:
        schemas = [structure.schema_ for structure in self.structures or ()]
        return is_longer([schemas, self.schema_ if self.json_schema is None else self.json_schema.schema_], most)


class StructuredOutputs(StrictModel):
    """vLLM's parameter, with exactly one of its four fields."""

    json_: Annotated[Any, BeforeValidator(_as_schema), Field(alias="json")] = None  # pydantic has a `json` of its own
    regex: Annotated[str, Field(min_length=1)] | None = None
    choice: Annotated[list[str], Field(fail_fast=True)] | None = None
    grammar: Annotated[str, Field(min_length=1)] | None = None  # in Lark or in GBNF

    @model_validator(mode="before")
    @classmethod
    def _choice_within_limits(cls, value: Any) -> Any:
        choice = value.get("choice") if isinstance(value, dict) else None
        if isinstance(choice, list) and not 1 <= len(choice) <= MAX_CHOICE_TEXTS:
            raise ValueError(
                f"structured_outputs.choice has {len(choice)} entries; it must have from 1 to {MAX_CHOICE_TEXTS}"
            )
        return value

    @model_validator(mode="after")
    def _exactly_one(self) -> StructuredOutputs:
        fields = {"json": self.json_, "regex": self.regex, "choice": self.choice, "grammar": self.grammar}
        given = [name for name, value in fields.items() if value is not None]
        if len(given) != 1:
            raise ValueError(
                f"structured_outputs has {' and '.join(given) or 'nothing'}; it must have one of {', '.join(fields)}"
            )
        if self.choice is not None:
            _check_choice(self.choice)
        return self

    def to_grammar(self) -> Grammar:
        if self.regex is not None:
            return Grammar(GrammarKind.REGEX, self.regex)
        if self.choice is not None:
            return Grammar(GrammarKind.CHOICE, _to_json(self.choice))
        if self.grammar is not None:
            return Grammar(GrammarKind.LARK, self.grammar)
        return Grammar(GrammarKind.JSON_SCHEMA, self.json_ if isinstance(self.json_, str) else _to_json(self.json_))

    def is_longer(self, most: int) -> bool:
        return is_longer([self.choice, None if isinstance(self.json_, str) else self.json_], most)


class GrammarSource(Protocol):
    """The value of a parameter from which a grammar can be made."""

    def to_grammar(self) -> Grammar | None:
        """The grammar; None where any text is allowed. Raises ValueError if it cannot be written as JSON."""
        ...

    def is_longer(self, most: int) -> bool:
        """Whether the source of the grammar has more than so many characters and values."""
        ...


class GrammarRequest(NamedTuple):
    """The grammar that one parameter of a request asks for. It is written only where it is compiled."""

    parameter: str  # wire name of the parameter
    value: GrammarSource

    def to_grammar(self) -> Grammar | None:
        """The grammar; None where any text is allowed. Raises InvalidParameter if its JSON cannot be written."""
        try:
            return self.value.to_grammar()
        except ValueError as error:
            raise InvalidParameter(self.parameter, f"{self.parameter}: {error}") from error


def _check_choice(choice: list[str]) -> None:
    if "" in choice:
        raise ValueError("structured_outputs.choice has an empty entry; each must have at least 1 character")


def _to_json(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError as error:
        raise ValueError(f"{shorten(value)} cannot be written as JSON: {error}") from error
