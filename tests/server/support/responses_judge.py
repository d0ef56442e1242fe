"""Streams of responses, judged by the models of OpenAI's own library and by the order that their events must have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import orjson
from openai.types.responses import Response, ResponseCustomToolCall, ResponsesServerEvent, ResponseStreamEvent
from pydantic import BaseModel

TERMINAL = ("response.completed", "response.incomplete", "response.failed")
# OpenAI's server tells `store` too; earlier versions of the library want the `name` at the end of a call's arguments.
NOT_IN_THE_LIBRARY = {"store", "name", "presence_penalty", "frequency_penalty"}


def _models(union: Any) -> dict[str, type[BaseModel]]:
    (members, *_) = get_args(union)
    return {get_args(member.model_fields["type"].annotation)[0]: member for member in get_args(members)}


_OF_STREAMS = _models(ResponseStreamEvent)
_OF_SOCKETS = _models(ResponsesServerEvent)


def parse_sse(body: bytes) -> list[dict[str, Any]]:
    """The events of a stream, whose lines must be an event's name and its data, and comments."""
    events = []
    for block in body.decode().split("\n\n"):
        if not block or block.startswith(":"):
            continue
        name, data = block.split("\n")
        event = orjson.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def judge(events: Sequence[dict[str, Any]], *, on_socket: bool = False, is_whole: bool = True) -> dict[str, Any]:
    """Returns the response of the last event, once everything else holds.

    Args:
        is_whole: whether the events are those of a stream from its beginning.
    """
    models = _OF_SOCKETS if on_socket else _OF_STREAMS
    for event in events:
        _check(models[event["type"]].model_validate(event, strict=True))
    kinds = [event["type"] for event in events]
    first = events[0]["sequence_number"]
    assert [event["sequence_number"] for event in events] == list(range(first, first + len(events)))
    assert [kind for kind in kinds if kind in TERMINAL] == kinds[-1:]
    response: dict[str, Any] = events[-1]["response"]
    if is_whole:
        assert first == 0
        assert kinds[0] == "response.created"
        _judge_items(events, response)
    return response


def judge_response(response: dict[str, Any]) -> dict[str, Any]:
    """Returns the response, once the library's model of it holds."""
    _check(Response.model_validate(response, strict=True))
    return response


def _judge_items(events: Sequence[dict[str, Any]], response: dict[str, Any]) -> None:
    """What the deltas add up to is what the items are at the end, and no item is told of after its end."""
    texts: dict[str, str] = {}
    done: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    opened: str | None = None
    for event in events:
        match event["type"]:
            case "response.output_item.added":
                assert opened is None
                assert event["output_index"] == len(done)
                assert event["item"]["status"] == "in_progress"
                opened = event["item"]["id"]
                texts[opened] = ""
            case "response.output_item.done":
                assert event["item"]["id"] == opened
                done.append(event["item"])
                opened = None
            case kind if kind.endswith(".delta"):
                assert event["item_id"] == opened
                assert event["delta"] or event.get("logprobs")
                texts[event["item_id"]] += event["delta"]
            case kind if kind.endswith(".done"):
                assert event["item_id"] == opened
                if kind == "response.function_call_arguments.done":
                    names[event["item_id"]] = event["name"]
                if "text" in event:
                    assert event["text"] == texts[event["item_id"]]
    assert opened is None
    assert response["output"] == done
    for item in done:
        match item["type"]:
            case "function_call":
                text = item["arguments"]
                assert names[item["id"]] == item["name"]
            case "custom_tool_call":
                text = item["input"]
            case kind if kind.endswith("_call"):
                text = ""
            case _:
                text = item["content"][0]["text"]
        assert text == texts[item["id"]]


def _check(model: BaseModel) -> None:
    """The library's models accept any further name. There must be none, at any depth."""
    extra = set(model.model_extra or ()) - NOT_IN_THE_LIBRARY
    if isinstance(model, ResponseCustomToolCall):
        extra -= {"status"}  # which every other call has in the library
    assert not extra, f"{type(model).__name__} has no {extra}"
    for value in vars(model).values():
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, BaseModel):
                _check(part)
