"""Builds the OpenAPI 3.1.1 document from the pydantic models that validate requests."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, models_json_schema

from sampling.host.params import NUMBERS, AboveZero, Limits
from server.api.apis import api_of
from server.api.openapi.descriptions import describe
from server.api.openapi.operations import OPERATIONS, Key, Operation, Tag
from server.startup.settings import Api

_REFERENCE = "#/components/schemas/{model}"
# Of numbers whose limits are more than a range.
_LOWEST: Mapping[str, dict[str, float]] = {"top_k": {"minimum": -1}, "truncate_prompt_tokens": {"minimum": -1}}
_VARIABLE = re.compile(r"\{(\w+)\}")
_JSON = "application/json"
_EVENTS = "text/event-stream"
# Events are without a schema: that of the whole text would say nothing, and some tools hold it against each event.
_OTHERS: dict[str, dict[str, Any]] = {_JSON: {"schema": {}}, _EVENTS: {}}


class _Schemas(GenerateJsonSchema):
    """Generates JSON schemas without titles, which would repeat the names of the fields."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def build_document(version: str, *, is_strict: bool = False, apis: Collection[str] = tuple(Api)) -> dict[str, Any]:
    """Builds the whole document.

    Args:
        version: of the server.
        is_strict: whether the server refuses unknown parameters.
        apis: those whose routes it has.
    """
    schemas, references = _make_schemas(is_strict=is_strict)
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        if api_of(operation.path) not in (None, *apis):
            continue
        described = _describe(operation, references)
        paths.setdefault(operation.path, {})[operation.method.lower()] = described
    return {
        "openapi": "3.1.1",
        "info": {
            "title": "Eagre",
            "version": version,
            "summary": "A token-streaming server for language models.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": [{"name": tag} for tag in Tag],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _make_schemas(*, is_strict: bool) -> tuple[dict[str, Any], Mapping[type[BaseModel], dict[str, Any]]]:
    """Returns the JSON schemas of all models by name, and a reference to each model's schema."""
    bodies = {operation.body for operation in OPERATIONS if operation.body is not None}
    kinds = {kind for operation in OPERATIONS for kind in (operation.answer, operation.event, operation.error)}
    answers = {kind for kind in kinds if isinstance(kind, type)}
    modes: list[tuple[type[BaseModel], JsonSchemaMode]] = [
        (kind, "validation") for kind in sorted(bodies | answers, key=lambda kind: kind.__name__)
    ]
    _, whole = models_json_schema(modes, schema_generator=_Schemas, ref_template=_REFERENCE)
    schemas: dict[str, Any] = whole["$defs"]
    for body in bodies:
        _complete(schemas[body.__name__], body.__name__, is_strict=is_strict)
    references = {kind: {"$ref": _REFERENCE.format(model=kind.__name__)} for kind, _ in modes}
    return schemas, references


def _complete(schema: dict[str, Any], body: str, *, is_strict: bool) -> None:
    """Adds descriptions to the schema of a request body, and limits that its model does not check."""
    if not is_strict:
        schema["additionalProperties"] = True  # unknown parameters are ignored with a warning
    for name, field in schema.get("properties", {}).items():
        description = describe(body, name)
        if description is not None:
            field["description"] = description.text
        limits = NUMBERS[name].limits if name in NUMBERS else None
        shaped = _LOWEST.get(name, {}) if limits is None else _shape_limits(limits)
        for kind in field.get("anyOf", [field]):
            if kind.get("type") in ("integer", "number"):
                kind.update(shaped)


def _shape_limits(limits: Limits) -> dict[str, float]:
    if isinstance(limits, AboveZero):
        return {"exclusiveMinimum": 0, "maximum": limits.highest}
    shaped = {"minimum": limits.lowest}
    return shaped if limits.highest is None else shaped | {"maximum": limits.highest}


def _describe(operation: Operation, references: Mapping[type[BaseModel], dict[str, Any]]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "tags": [operation.tag],
        "summary": operation.summary,
        "operationId": _identify(operation),
        "security": [] if operation.key is Key.NOBODY else [{}, {"key": []}],
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _VARIABLE.findall(operation.path)
    ] + [{"name": name, "in": "query", "schema": {"type": "string"}} for name in operation.query]
    if parameters:
        described["parameters"] = parameters
    if operation.body is not None:
        content = {_JSON: {"schema": references[operation.body]}}
        described["requestBody"] = {"required": operation.needs_body, "content": content}
    described["responses"] = _describe_answers(operation, references)
    return described


def _describe_answers(operation: Operation, references: Mapping[type[BaseModel], dict[str, Any]]) -> dict[str, Any]:
    error = {"description": "An error.", "content": {_JSON: {"schema": references[operation.error]}}}
    if operation.is_socket:
        return {
            "101": {"description": "The socket is open; docs/protocol.md describes its messages."},
            "default": error,
        }
    content: dict[str, Any] = {}
    description = "The answer."
    if isinstance(operation.answer, str):
        content[operation.answer] = _OTHERS.get(operation.answer, {"schema": {"type": "string"}})
    else:
        content[_JSON] = {"schema": references[operation.answer]}
    if operation.event is not None:
        name = operation.event.__name__
        content[_EVENTS] = {**_OTHERS[_EVENTS], "x-event": references[operation.event]}
        description = f"The answer. A stream consists of server-sent events, the data of each of which is a {name}."
    return {"200": {"description": description, "content": content}, "default": error}


def _identify(operation: Operation) -> str:
    words = [word for word in re.split(r"[^A-Za-z0-9]+", operation.path) if word]
    return "_".join([operation.method.lower(), *words])
