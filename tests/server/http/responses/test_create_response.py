"""POST /v1/responses: the same response whole and streamed, judged by OpenAI's library."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError

from server.api.responses.function_tools import FunctionTool
from server.api.responses.response_writer import ResponseWriter
from server.protocol.json_limits import MAX_INLINE_BYTES
from tests.fakes.engine_client import FakeEngineClient, logprob_of
from tests.fakes.text_model import FakeTextModel
from tests.server.conftest import RunningServer, eventually
from tests.server.http.responses.conftest import TEMPLATE, ask, stream, text_of
from tests.server.support.responses_judge import judge, judge_response, parse_sse

WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
ARGUMENTS = '{"city": "Oslo"}'
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>'


async def test_a_text_is_answered(server: RunningServer) -> None:
    response = judge_response(await ask(server, input="tide", instructions="Be calm.", metadata={"a": "b"}))
    assert response["status"] == "completed"
    assert text_of(response) == "system:Be calm.|user:tide|"
    assert response["usage"]["input_tokens"] == len("system:Be calm.|user:tide|")
    assert response["usage"]["output_tokens"] == response["usage"]["input_tokens"] + 1
    assert (response["instructions"], response["metadata"], response["model"]) == ("Be calm.", {"a": "b"}, "fake")
    assert response["temperature"] == 1.0


async def test_a_stream_tells_the_same_as_a_whole_answer(server: RunningServer) -> None:
    body: dict[str, Any] = {"input": "tide é", "store": False}
    streamed = judge(await stream(server, **body))
    whole = await ask(server, **body)
    assert [item["content"] for item in streamed["output"]] == [item["content"] for item in whole["output"]]
    assert streamed["usage"] == whole["usage"]


async def test_items_become_the_messages_that_the_template_knows(server: RunningServer) -> None:
    items = [
        {"role": "developer", "content": "Short."},
        {"role": "user", "content": [{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I ask.", "annotations": []}],
        },
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": ARGUMENTS, "status": "completed"},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
    ]
    response = await ask(server, input=items, instructions="Calm.", tools=[WEATHER], tool_choice="none")
    assert text_of(response) == (
        'system:Calm.\n\nShort.|user:one\ntwo|assistant:I ask.(hm)!weather{"city": "Oslo"}|tool:rainc1|'
    )


async def test_calls_and_text_are_items_of_their_own(start_saying) -> None:
    server = await start_saying("I look.\n" + CALL + "\n" + CALL)
    events = await stream(server, input="x", tools=[WEATHER])
    response = judge(events)
    assert [item["type"] for item in response["output"]] == ["message", "function_call", "function_call"]
    message, first, second = response["output"]
    assert message["content"][0]["text"] == "I look.\n"
    assert (first["name"], first["arguments"]) == ("weather", ARGUMENTS)
    assert first["call_id"] != second["call_id"]
    assert len({item["id"] for item in response["output"]}) == 3
    whole = judge_response(await ask(server, input="x", tools=[WEATHER]))
    assert [item["type"] for item in whole["output"]] == [item["type"] for item in response["output"]]


async def test_a_call_alone_has_no_message_beside_it(start_saying) -> None:
    server = await start_saying("\n" + CALL + "\n")
    response = judge(await stream(server, input="x", tools=[WEATHER]))
    assert [item["type"] for item in response["output"]] == ["function_call"]


async def test_reasoning_is_an_item_of_its_own(start_saying) -> None:
    server = await start_saying("<think>I add.</think>\n\nFour.", template=TEMPLATE + "{# </think> #}")
    events = await stream(server, input="x")
    response = judge(events)
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
    assert response["output"][0]["content"] == [{"type": "reasoning_text", "text": "I add."}]
    assert text_of(response) == "Four."
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] == len("<think>I add.</think>")
    assert "response.reasoning_text.delta" in {event["type"] for event in events}


async def test_an_answer_that_is_cut_off_is_incomplete(server: RunningServer) -> None:
    response = judge(await stream(server, input="tide", max_output_tokens=3))
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert response["output"][0]["status"] == "incomplete"
    assert text_of(response) == "use"


async def test_an_empty_answer_has_a_message_without_text(start_saying) -> None:
    server = await start_saying("")
    response = judge(await stream(server, input="x"))
    assert [item["content"][0]["text"] for item in response["output"]] == [""]


async def test_logprobs_come_with_the_text(server: RunningServer) -> None:
    body: dict[str, Any] = {"input": "a", "include": ["message.output_text.logprobs"], "top_logprobs": 1}
    events = await stream(server, **body)
    response = judge(events)
    told = [token for event in events if event["type"] == "response.output_text.delta" for token in event["logprobs"]]
    kept = response["output"][0]["content"][0]["logprobs"]
    assert [token["logprob"] for token in told] == [token["logprob"] for token in kept[:-1]]  # the last has no text
    assert [token["logprob"] for token in kept[:2]] == [logprob_of(byte) for byte in b"us"]
    assert kept[0]["top_logprobs"][0]["logprob"] == logprob_of(0)


async def test_log_probabilities_of_a_whole_answer_are_no_work_for_the_loop(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    end = ResponseWriter.end

    def noting(writer: ResponseWriter) -> list[bytes]:
        threads.append(threading.current_thread() is threading.main_thread())
        return end(writer)

    monkeypatch.setattr(ResponseWriter, "end", noting)
    await ask(server, input="a")
    await ask(server, input="a", include=["message.output_text.logprobs"])
    assert threads == [True, False]


async def test_the_form_of_the_text_is_told_back(server: RunningServer) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "name": "thing", "schema": schema, "strict": True}
    response = judge_response(await ask(server, input="x", text={"format": form}, tools=[WEATHER], tool_choice="auto"))
    assert response["text"]["format"]["schema"] == schema
    assert response["tools"][0]["name"] == "weather"


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({}, "input", "must be something to answer"),
        ({"input": [{"type": 5}]}, "input[0].type", "string"),
        ({"input": [{"role": "user", "content": [{"type": "picture"}]}]}, "input[0].content", "only text"),
        ({"input": "x", "tools": [{"name": "web_search"}]}, "tools[0]", "type"),
        ({"input": "x", "tool_choice": {"type": "file_search"}}, "tool_choice", "file_search"),
        ({"input": "x", "max_tokens": 5}, "max_tokens", 'did you mean "max_output_tokens"'),
        ({"input": "x", "max_output_tokens": 0}, "max_output_tokens", "at least 1"),
        ({"input": "x", "n": 2}, "n", "not supported"),
        ({"input": "x", "metadata": {"a": 1}}, "metadata", "string"),
        ({"input": "x", "previous_response_id": "a", "conversation": "b"}, "previous_response_id", "both given"),
        ({"input": "x", "previous_response_id": "resp_none"}, "previous_response_id", "not found"),
        ({"input": "x", "background": True, "store": False}, "background", "store"),
        ({"input": "x", "text": {"format": {"type": "json_schema"}}}, "text.format", "name"),
        ({"input": [{"type": "item_reference", "id": "msg_none"}]}, "input[0].id", "not found"),
        ({"input": "x" * 9000}, "input", "context"),
    ],
)  # fmt: skip
async def test_what_is_wrong_is_named(server: RunningServer, body: dict[str, Any], param: str, words: str) -> None:
    for is_streamed in (False, True):
        status, answer = await server.post("/v1/responses", {**body, "stream": is_streamed})
        assert (status, answer["error"]["param"]) == (400, param)
        assert words in answer["error"]["message"]


async def test_a_model_that_does_not_exist_and_a_conversation_that_does_not(server: RunningServer) -> None:
    assert (await server.post("/v1/responses", {"input": "x", "model": "none"}))[0] == 404
    status, answer = await server.post("/v1/responses", {"input": "x", "conversation": "conv_none"})
    assert (status, answer["error"]["param"]) == (404, "conversation")


async def test_large_tools_are_encoded_once_and_not_in_the_loop(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    to_wire = FunctionTool.to_wire

    def note(tool: FunctionTool) -> dict[str, Any]:
        threads.append(threading.current_thread())
        return to_wire(tool)

    monkeypatch.setattr(FunctionTool, "to_wire", note)
    tool = WEATHER | {"description": "é" * MAX_INLINE_BYTES}
    events = await stream(server, input="x", tools=[tool], tool_choice="none", instructions="\u2028")
    told = [event["response"] for event in events if "response" in event]
    assert [(one["tools"][0]["description"], one["instructions"]) for one in told] == [
        (tool["description"], "\u2028")
    ] * len(told)
    assert len(told) == 3
    assert len(threads) == 1
    assert threads[0] is not threading.current_thread()


async def test_a_client_that_leaves_ends_the_generation(start_server) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine, text_model=FakeTextModel(TEMPLATE))
    for is_streamed in (True, False):
        body = {"input": "x", "stream": is_streamed}
        asking = asyncio.ensure_future(server.http.post(server.url + "/v1/responses", json=body))
        await eventually(lambda: bool(engine.running))
        engine.step()
        if is_streamed:
            (await asking).close()
        asking.cancel()
        await eventually(lambda: not engine.running)
    assert server.served.store.num_records == 0


async def test_a_request_that_cannot_go_on_ends_its_stream_with_one_event(start_server) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine, text_model=FakeTextModel(TEMPLATE))
    streaming = asyncio.ensure_future(server.stream_bytes("/v1/responses", {"input": "x"}))
    await eventually(lambda: bool(engine.running))
    engine.step()
    await asyncio.sleep(0.01)
    next(iter(engine.running.values())).meet_dead_end("no token is left")
    response = judge(parse_sse(await streaming))
    assert (response["status"], response["error"]["code"]) == ("failed", "invalid_prompt")
    assert response["error"]["message"] == "no token is left"
    assert text_of(response) == "u"


async def test_the_librarys_own_helpers(client: AsyncOpenAI) -> None:
    response = await client.responses.create(model="fake", input="tide")
    assert response.output_text == "user:tide|"
    async with client.responses.stream(model="fake", input="tide") as streamed:
        async for _ in streamed:
            pass
        final = await streamed.get_final_response()
    assert final.output_text == "user:tide|"
    with pytest.raises(BadRequestError, match="temperature"):
        await client.responses.create(model="fake", input="tide", temperature=9)
