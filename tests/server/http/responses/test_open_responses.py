"""The checks that the compliance suite of Open Responses makes, over HTTP and on a WebSocket.

The suite asks a real model; here the model says what it must, and the answer is judged by OpenAI's library and by the
fields that the specification requires.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.conftest import RunningServer
from tests.server.http.responses.conftest import ask, stream, text_of
from tests.server.http.responses.test_response_socket import create, open_socket, receive, respond
from tests.server.support.responses_judge import judge_response

# What a response always has.
REQUIRED = {
    "background", "completed_at", "created_at", "error", "frequency_penalty", "id", "incomplete_details",
    "instructions", "max_output_tokens", "max_tool_calls", "metadata", "model", "object", "output",
    "parallel_tool_calls", "presence_penalty", "previous_response_id", "prompt_cache_key", "reasoning",
    "safety_identifier", "service_tier", "status", "store", "temperature", "text", "tool_choice", "tools",
    "top_logprobs", "top_p", "truncation", "usage",
}  # fmt: skip
GET_WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
}
ARGUMENTS = '{"location": "San Francisco, CA"}'
CALL = f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
WAYS = ["whole", "streamed", "socket"]


def message(role: str, content: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content}


async def answer(server: RunningServer, way: str, **body: Any) -> dict[str, Any]:
    """The response to a body in one of the three ways, judged."""
    if way == "socket":
        async with open_socket(server) as socket:
            response = await respond(socket, **body)
    elif way == "streamed":
        response = (await stream(server, stream=True, **body))[-1]["response"]
    else:
        response = judge_response(await ask(server, **body))
    assert response.keys() >= REQUIRED
    assert (response["object"], response["status"], response["error"]) == ("response", "completed", None)
    assert response["output"]
    return response


@pytest.mark.parametrize("way", WAYS)
async def test_a_text_has_an_answer(server: RunningServer, way: str) -> None:
    response = await answer(server, way, input=[message("user", "Say hello in exactly 3 words.")])
    (item,) = response["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    assert text_of(response) == "user:Say hello in exactly 3 words.|"


@pytest.mark.parametrize("way", WAYS)
async def test_a_system_message_is_part_of_the_input(server: RunningServer, way: str) -> None:
    items = [message("system", "You are a pirate."), message("user", "Say hello.")]
    assert text_of(await answer(server, way, input=items)) == "system:You are a pirate.|user:Say hello.|"


@pytest.mark.parametrize("way", WAYS)
async def test_an_earlier_turn_is_part_of_the_input(server: RunningServer, way: str) -> None:
    items = [
        message("user", "My name is Alice."), message("assistant", "Hello Alice!"), message("user", "What is my name?"),
    ]  # fmt: skip
    told = "user:My name is Alice.|assistant:Hello Alice!|user:What is my name?|"
    assert text_of(await answer(server, way, input=items)) == told


@pytest.mark.parametrize("way", WAYS)
async def test_a_picture_leaves_a_note_where_the_operator_says_so(start_saying: Any, way: str) -> None:
    server = await start_saying(ignore_media=True)
    picture = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
    parts = [{"type": "input_text", "text": "What do you see?"}, picture]
    response = await answer(server, way, input=[message("user", parts)])
    assert "What do you see?" in text_of(response)
    assert "cannot see images" in text_of(response)


@pytest.mark.parametrize("way", WAYS)
async def test_a_tool_is_called_and_its_result_is_answered(start_saying, way: str) -> None:
    asked = message("user", "What's the weather like in San Francisco?")
    first = await answer(await start_saying(CALL), way, input=[asked], tools=[GET_WEATHER])
    (call,) = first["output"]
    assert (call["type"], call["name"], call["arguments"]) == ("function_call", "get_weather", ARGUMENTS)
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "foggy"}
    second = await answer(await start_saying(), way, input=[asked, call, result], tools=[GET_WEATHER])
    assert text_of(second).endswith(f"tool:foggy{call['call_id']}|")


async def test_a_streamed_call_has_its_events(start_saying) -> None:
    server = await start_saying(CALL)
    events = await stream(server, stream=True, input=[message("user", "Weather?")], tools=[GET_WEATHER])
    kinds = [event["type"] for event in events]
    added, done = kinds.index("response.output_item.added"), kinds.index("response.output_item.done")
    assert events[added]["item"]["type"] == events[done]["item"]["type"] == "function_call"
    assert added < kinds.index("response.function_call_arguments.delta")
    assert kinds.index("response.function_call_arguments.done") < done
    pieces = [event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"]
    assert json.loads("".join(pieces)) == {"location": "San Francisco, CA"}


@pytest.mark.parametrize("way", WAYS)
async def test_a_response_follows_another_by_its_id(server: RunningServer, way: str) -> None:
    first = await answer(server, way, input=[message("user", "one")])
    second = await answer(server, way, input=[message("user", "two")], previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    assert text_of(second) == "user:one|assistant:user:one||user:two|"


async def test_events_come_in_order(server: RunningServer) -> None:
    kinds = [event["type"] for event in await stream(server, stream=True, input=[message("user", "a")])]
    assert list(dict.fromkeys(kinds)) == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
        "response.output_text.delta", "response.output_text.done", "response.content_part.done",
        "response.output_item.done", "response.completed",
    ]  # fmt: skip


async def test_a_socket_serves_one_response_after_the_other(server: RunningServer) -> None:
    async with open_socket(server) as socket:
        first = await respond(socket, input=[message("user", "one")], store=False)
        second = await respond(socket, input="two", store=False, previous_response_id=first["id"])
    assert text_of(second) == "user:one|assistant:user:one||user:two|"


async def test_a_failed_continuation_forgets_what_it_followed(server: RunningServer) -> None:
    async with open_socket(server) as socket:
        for store in (False, True):
            first = await respond(socket, input="one", store=store)
            following = {"previous_response_id": first["id"], "store": False}
            orphan = {"type": "function_call_output", "call_id": "call_missing", "output": "x"}
            await create(socket, input=[orphan], **following)
            assert (await receive(socket))["type"] == "error"
            await create(socket, input="two", **following)
            event = await receive(socket)
            if store:
                assert event["type"] == "response.created"
            else:
                assert (event["type"], event["error"]["code"]) == ("error", "previous_response_not_found")


async def test_a_compaction_names_its_model(server: RunningServer) -> None:
    status, body = await server.post("/v1/responses/compact", {"input": "one"})
    assert (status, body["error"]["param"], body["error"]["code"]) == (400, "model", "missing_required_parameter")


async def test_a_compacted_conversation_is_an_input(start_saying) -> None:
    items = [message("user", "one"), message("assistant", "two")]
    body = {"model": "fake", "input": items}
    status, compacted = await (await start_saying("Summary.")).post("/v1/responses/compact", body)
    assert (status, compacted["object"]) == (200, "response.compaction")
    response = await answer(await start_saying(), "whole", input=[*compacted["output"], message("user", "three")])
    assert "Summary." in text_of(response)
