"""Descriptions of request parameters, read from `parameters.toml`."""

import tomllib
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from sampling.host import params
from server.api.anthropic import content_blocks
from server.api.openai import chat_request, completion_request, token_requests
from server.api.pooling import rerank_request
from server.api.responses import responses_request
from server.protocol import generation_fields, sampling_fields, tools


class Parameter(NamedTuple):
    """What readers need to know of a parameter; `parameters.toml` explains the fields."""

    text: str
    values: str = ""
    default: str = ""
    section: str = ""


_LIMITS = {
    name: f"{value:,g}" if isinstance(value, float) else f"{value:,}"
    for module in (
        params, generation_fields, sampling_fields, tools, chat_request, completion_request,
        token_requests, rerank_request, responses_request, content_blocks,
    )
    for name, value in vars(module).items()
    if name.startswith("MAX_")
}  # fmt: skip


def _read(fields: dict[str, Any]) -> Parameter:
    return Parameter(**{name: Template(text).substitute(_LIMITS) for name, text in fields.items()})


# By the names of parameters, and of those that differ in one body by "Body.parameter".
DESCRIPTIONS = {
    name: _read(fields)
    for name, fields in tomllib.loads(Path(__file__).with_name("parameters.toml").read_text()).items()
}
_SAME = {"CountTokensRequest": "MessagesRequest"}  # bodies whose parameters have the same descriptions


def describe(body: str, name: str) -> Parameter | None:
    """Returns the description of a parameter of the body whose model has the name `body`."""
    return DESCRIPTIONS.get(f"{_SAME.get(body, body)}.{name}") or DESCRIPTIONS.get(name)
