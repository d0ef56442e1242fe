"""Generates the tables of docs/protocol.md from the OpenAPI document.

`python -m server.api.openapi.markdown docs/protocol.md` rewrites them. A table stands
between the lines `<!-- generated: NAME -->` and `<!-- end -->`.
"""

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

from sampling.host.params import NUMBERS, SamplingParams
from server.api.openapi.descriptions import Parameter, describe
from server.api.openapi.openapi import build_document
from server.api.openapi.operations import OPERATIONS, Operation, Tag

_BLOCK = re.compile(r"(<!-- generated: ([a-z]+) -->\n).*?(?=<!-- end -->)", re.DOTALL)
_NO_LIMIT = 2**31 - 1  # the largest int32 is shown as no limit
_CHAT, _COMPLETION = "ChatCompletionRequest", "CompletionRequest"
_FIRST = ("model", "prompt", "messages", "max_tokens", "max_completion_tokens")  # rows of the table of both

Schema = dict[str, Any]


def fill_tables(text: str) -> str:
    """Returns the Markdown text with every generated table made anew; raises KeyError for an unknown name."""
    schemas = build_document("")["components"]["schemas"]
    return _BLOCK.sub(lambda block: block[1] + "\n".join(_TABLES[block[2]](schemas)) + "\n", text)


def _routes(_schemas: Schema) -> Iterable[str]:
    """Every route that is not the administrator's, by tag; routes of one summary share a row."""
    yield from _head("route", "what it does")
    shown = sorted((operation for operation in OPERATIONS if operation.tag is not Tag.ADMIN), key=_position_of_tag)
    for summary, operations in groupby(shown, key=attrgetter("summary")):
        yield _row(", ".join(map(_route, operations)), summary)


def _position_of_tag(operation: Operation) -> int:
    return list(Tag).index(operation.tag)


def _admin_routes(schemas: Schema) -> Iterable[str]:
    yield from _head("route", "body or query", "what it does")
    for operation in OPERATIONS:
        if operation.path.startswith("/admin/"):
            names = _names_of_body(operation, schemas) if operation.body is not None else operation.query
            yield _row(_route(operation), ", ".join(f"`{name}`" for name in names), operation.summary)


def _names_of_body(operation: Operation, schemas: Schema) -> Sequence[str]:
    assert operation.body is not None
    return list(schemas[operation.body.__name__]["properties"])


def _generation(schemas: Schema) -> Iterable[str]:
    """The parameters of chats and completions, with a column that says which of the two has a parameter."""
    chat, completion = schemas[_CHAT]["properties"], schemas[_COMPLETION]["properties"]
    yield from _head("parameter", "of", "value", "default", "meaning")
    for name in dict.fromkeys([*_FIRST, *completion, *chat]):
        bodies = [body for body in (_CHAT, _COMPLETION) if name in schemas[body]["properties"]]
        cells = [_parameter(body, name, schemas[body]) for body in bodies]
        if len(bodies) == 2 and cells[0] == cells[1]:
            yield _row(f"`{name}`", "", *cells[0])
            continue
        for body, cell in zip(bodies, cells, strict=True):
            yield _row(f"`{name}`", "chat" if body == _CHAT else "completions", *cell)


def _parameters(*bodies: str, without: Sequence[str] = ()) -> Callable[[Schema], Iterable[str]]:
    """A table of the parameters of some bodies, without those of others."""

    def table(schemas: Schema) -> Iterable[str]:
        left_out = {name for body in without for name in schemas[body]["properties"]}
        yield from _head("parameter", "value", "default", "meaning")
        shown: set[str] = set()
        for body in bodies:
            for name in schemas[body]["properties"]:
                own = describe(body, name) is not describe("", name)
                if name not in shown and (own or name not in left_out):
                    shown.add(name)
                    yield _row(f"`{name}`", *_parameter(body, name, schemas[body]))

    return table


_TABLES: dict[str, Callable[[Schema], Iterable[str]]] = {
    "routes": _routes,
    "admin": _admin_routes,
    "adminparameters": _parameters("SleepBody", "UpdateWeightsBody", "AbortBody", without=("ModelBody",)),
    "generation": _generation,
    "responses": _parameters("ResponsesRequest", without=(_CHAT,)),
    "messages": _parameters("MessagesRequest", without=(_CHAT,)),
    "embeddings": _parameters("EmbeddingsRequest"),
    "rerank": _parameters("RerankRequest"),
    "score": _parameters("ScoreRequest"),
    "classify": _parameters("ClassifyRequest"),
    "batches": _parameters("NewBatch"),
    "tokenize": _parameters("TokenizeRequest"),
    "detokenize": _parameters("DetokenizeRequest"),
    "llamacpp": _parameters("LlamaCompletionRequest", "InfillRequest", without=(_COMPLETION,)),
    "ollama": _parameters("ChatRequest", "GenerateRequest"),
}


def _parameter(body: str, name: str, schema: Schema) -> tuple[str, str, str]:
    """The cells of one parameter: value, default, meaning."""
    field = schema["properties"][name]
    parameter = describe(body, name) or Parameter("")
    kinds = [kind for kind in field.get("anyOf", [field]) if kind.get("type") != "null"]
    values = parameter.values or " or ".join(dict.fromkeys(_value(kind) for kind in kinds))
    default = "required" if name in schema.get("required", ()) else parameter.default or _default(name, field, kinds)
    text = parameter.text
    if parameter.section:
        text += f" See [{parameter.section}](#{parameter.section.lower().replace(' ', '-')})."
    return values, default, text


def _default(name: str, field: Schema, kinds: Sequence[Schema]) -> str:
    if field.get("default") is not None:
        return f"`{field['default']}`".lower()
    if name in _SAMPLING_DEFAULTS and name in NUMBERS and not NUMBERS[name].is_optional:
        return f"{_SAMPLING_DEFAULTS[name]:g}".replace("-", "−")
    return "`false`" if kinds and kinds[0].get("type") == "boolean" else "none"


_SAMPLING_DEFAULTS = {field.name: field.default for field in fields(SamplingParams)}


def _value(schema: Schema) -> str:
    """What a schema allows, in words."""
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    match schema.get("type"):
        case "boolean":
            return "boolean"
        case "integer" | "number" as kind:
            return _range(kind, schema)
        case "string" if "maxLength" in schema:
            return f"{schema.get('minLength', 0)} to {schema['maxLength']} characters"
        case "string":
            return "a text"
        case "array" if "maxItems" in schema:
            return f"a list of at most {schema['maxItems']}"
        case "array":
            return "a list"
    return "an object"


def _range(kind: str, schema: Schema) -> str:
    lowest, highest = schema.get("minimum"), schema.get("maximum")
    if highest is not None and highest >= _NO_LIMIT:
        highest = None
    if "exclusiveMinimum" in schema:
        return f"above {schema['exclusiveMinimum']}" + ("" if highest is None else f", at most {highest:g}")
    if lowest is None:
        return kind
    return (f"from {lowest:g}" if highest is None else f"{lowest:g} to {highest:g}").replace("-", "−")


def _route(operation: Operation) -> str:
    return f"`{operation.method} {operation.path}`" + (" (WebSocket)" if operation.is_socket else "")


def _head(*names: str) -> Iterable[str]:
    yield _row(*names)
    yield "|" + "---|" * len(names)


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main() -> None:
    """Rewrites the files that are named on the command line."""
    for path in map(Path, sys.argv[1:]):
        path.write_text(fill_tables(path.read_text()))


if __name__ == "__main__":
    main()
