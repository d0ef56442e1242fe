"""Bodies whose values are nested deeply, at each place of each route: none is a fault of the server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from tests.server.conftest import RunningServer
from tests.thoroughness import IS_FULL

DEPTHS = (90, 101, *range(248, 257), 300, 1000) if IS_FULL else (90, 101, 253, 254, 255, 256, 1000)
MARK = "…here…"

_SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "enum": ["b"], "default": "c"}}}
_FUNCTION = {"name": "f", "description": "d", "parameters": _SCHEMA}
_CHAT = {
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "t"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": "b"}'}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "r"},
    ],
    "tools": [{"type": "function", "function": _FUNCTION}],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "chat_template_kwargs": {"k": "v"},
    "mm_processor_kwargs": {"k": "v"},
    "logit_bias": {"65": 1},
    "stop": ["x"],
    "metadata": {"a": "b"},
    "stream_options": {"include_usage": True},
    "max_tokens": 2,
    "user": "u",
}
_FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": _SCHEMA}}
BODIES: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [_CHAT, {"messages": [{"role": "user", "content": "a"}], "response_format": _FORMAT}],
    "/v1/completions": [
        {"prompt": ["a", "b"], "structured_outputs": {"json": _SCHEMA}, "max_tokens": 2},
        {"prompt": [[65, 66]], "structured_outputs": {"choice": ["a"]}, "max_tokens": 2},
    ],
    "/v1/responses": [
        {
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "t"}]},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": "b"}'},
                {"type": "function_call_output", "call_id": "c", "output": "r"},
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]},
            ],
            "tools": [{"type": "function", **_FUNCTION}],
            "tool_choice": {"type": "function", "name": "f"},
            "text": {"format": {"type": "text"}},
            "reasoning": {"effort": "low"},
            "metadata": {"a": "b"},
            "max_output_tokens": 16,
        },
        {"input": "a", "text": {"format": {"type": "json_schema", "name": "n", "schema": _SCHEMA}}},
    ],
    "/v1/messages": [
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "t"}]},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {"a": "b"}}]},
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "r"}]}
                    ],
                },
            ],
            "tools": [{"name": "f", "description": "d", "input_schema": _SCHEMA}],
            "tool_choice": {"type": "tool", "name": "f"},
            "system": [{"type": "text", "text": "s"}],
            "metadata": {"user_id": "u"},
            "max_tokens": 2,
        }
    ],
    "/v1/conversations": [
        {"items": [{"type": "message", "role": "user", "content": "a"}], "metadata": {"a": "b"}},
    ],
    "/v1/embeddings": [{"input": ["a", "b"]}],
    "/tokenize": [
        {"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function", "function": _FUNCTION}]}
    ],
    "/detokenize": [{"tokens": [65]}],
}


def places(value: Any) -> Iterator[Any]:
    """The value with a mark in the place of each of its parts, one after the other."""
    yield MARK
    if isinstance(value, dict):
        for key in value:
            for part in places(value[key]):
                yield {**value, key: part}
        yield {**value, "more": MARK}
    elif isinstance(value, list):
        for at, item in enumerate(value):
            for part in places(item):
                yield [*value[:at], part, *value[at + 1 :]]


def nested(depth: int, as_object: bool) -> bytes:
    return b'{"a":' * depth + b"1" + b"}" * depth if as_object else b"[" * depth + b"]" * depth


@pytest.mark.parametrize("path", BODIES)
async def test_nothing_that_is_nested_deeply_is_a_fault_of_the_server(server: RunningServer, path: str) -> None:
    mark = orjson.dumps(MARK)
    for number, template in enumerate(part for body in BODIES[path] for part in places(body)):
        for at, depth in enumerate(DEPTHS):
            as_object = (number + at) % 3 > 0
            body = orjson.dumps(template).replace(mark, nested(depth, as_object))
            async with server.http.post(
                server.url + path, data=body, headers={"content-type": "application/json"}
            ) as r:
                answer = await r.text()
                assert r.status < 500, (path, template, depth, as_object, answer)
