"""Every list that a body may have, found in the request models themselves: bounded, and refused at its first bad item.

Pydantic makes an error of each bad item otherwise, which takes a second of the interpreter lock for a large body.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

import server.api
import server.protocol
from server.protocol.errors import ApiError, FieldError

MANY = (1 << 19) + 1  # more than any list may have
ITEMS: tuple[Any, ...] = (None, 1, "x", [], {}, {"type": "x"}, {"type": "function", "name": "f"})


def request_models() -> list[type[BaseModel]]:
    for package in (server.protocol, server.api):
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            importlib.import_module(module.name)

    def below(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
        for derived in model.__subclasses__():
            yield derived
            yield from below(derived)

    found = {
        model
        for model in below(BaseModel)
        if model.__module__.startswith(("server.protocol.", "server.api."))
        and not model.__module__.startswith("server.api.openapi.")  # the shapes of answers
    }
    return sorted(found, key=lambda model: (model.__module__, model.__name__))


def takes_list(schema: dict[str, Any]) -> bool:
    return schema.get("type") == "array" or any(map(takes_list, schema.get("anyOf", ())))


LISTS = [
    pytest.param(model, name, id=f"{model.__name__}.{name}")
    for model in request_models()
    for name, schema in model.model_json_schema().get("properties", {}).items()
    if takes_list(schema)
]


def refusals(model: type[BaseModel], name: str, value: Any) -> list[str]:
    """Why `value` cannot be that field; fields that are missing are named too."""
    try:
        model.model_validate({name: value})
    except ValidationError as error:
        return [part["msg"] for part in error.errors(include_input=False)]
    except (ApiError, FieldError) as error:
        return [str(error)]
    return []


def test_the_lists_are_found() -> None:
    names = {param.id for param in LISTS}
    assert {"FunctionTool.allowed_callers", "Message.content", "CompletionRequest.prompt"} <= names


@pytest.mark.parametrize("item", ITEMS, ids=repr)
@pytest.mark.parametrize(("model", "name"), LISTS)
def test_few_errors_are_made_of_a_list_of_bad_items(model: type[BaseModel], name: str, item: Any) -> None:
    assert len(refusals(model, name, [item] * 1000)) < 10


@pytest.mark.parametrize(("model", "name"), LISTS)
def test_a_list_has_a_bound(model: type[BaseModel], name: str) -> None:
    told = [refusal for item in ITEMS for refusal in refusals(model, name, [item] * MANY)]
    assert re.search(r"at most \d+|from 1 to \d+", " ".join(told))
