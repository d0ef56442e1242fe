"""POST /v1/chat/completions: what the official client does not look at."""

from __future__ import annotations

import json

import pytest

from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.text_model import EOS, FakeTextModel, render
from tests.server.conftest import RunningServer, StartServer
from tests.server.support.socket_client import open_socket, read_to_end, send
from tests.server.support.sse_reader import chunks_of, read_all

HELLO = [{"role": "user", "content": "hello"}]


async def test_first_chunk_rule_and_no_empty_deltas(server: RunningServer) -> None:
    chunks = chunks_of(await server.stream_bytes("/v1/chat/completions", {"messages": HELLO}))
    first, *others = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert first == {"role": "assistant", "content": "u"}
    assert all(delta.keys() == {"content"} and delta["content"] for delta in others[:-1])
    assert others[-1] == {}
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


async def test_a_half_character_makes_no_chunk(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(respond=lambda *_: list("🌊".encode())))
    chunks = chunks_of(await server.stream_bytes("/v1/chat/completions", {"messages": HELLO}))
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [{"role": "assistant", "content": "🌊"}, {}]


async def test_an_answer_without_text_has_only_its_end(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(respond=lambda *_: []))
    data = await server.stream_bytes("/v1/chat/completions", {"messages": HELLO})
    assert [record.kind for record in read_all(data)] == ["comment", "data", "data"]
    (chunk,) = chunks_of(data)
    assert chunk["choices"] == [
        {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop", "stop_reason": None, "matched_stop": EOS}
    ]


async def test_token_ids_on_request(server: RunningServer) -> None:
    prompt = list(render(*HELLO).encode())
    body = {"messages": HELLO, "return_token_ids": True}
    _, answer = await server.post("/v1/chat/completions", body)
    assert answer["prompt_token_ids"] == prompt
    assert answer["choices"][0]["token_ids"] == [*prompt, EOS]
    chunks = chunks_of(await server.stream_bytes("/v1/chat/completions", body))
    assert [chunk.get("prompt_token_ids") for chunk in chunks] == [prompt] + [None] * (len(chunks) - 1)
    assert [token_id for chunk in chunks for token_id in chunk["choices"][0]["token_ids"]] == [*prompt, EOS]


async def test_max_completion_tokens_wins_over_its_older_name(server: RunningServer) -> None:
    body = {"messages": HELLO, "max_completion_tokens": 3, "max_tokens": 5}
    _, answer = await server.post("/v1/chat/completions", body)
    nothing = {"refusal": None, "reasoning_content": None, "reasoning": None}
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "use", **nothing}
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_a_template_that_refuses_is_a_clear_error(start_server: StartServer) -> None:
    server = await start_server(text_model=FakeTextModel("{{ raise_exception('roles must alternate') }}"))
    status, body = await server.post("/v1/chat/completions", {"messages": HELLO})
    assert (status, body["error"]["param"]) == (400, "messages")
    assert "roles must alternate" in body["error"]["message"]


async def test_a_model_without_a_template_is_not_for_chat(start_server: StartServer) -> None:
    server = await start_server(text_model=FakeTextModel(None))
    status, body = await server.post("/v1/chat/completions", {"messages": HELLO})
    assert (status, body["error"]["code"]) == (400, "no_chat_template")
    assert (await server.post("/v1/completions", {"prompt": "a"}))[0] == 200


async def test_a_long_prompt_is_tokenised_beside_the_loop(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(max_model_len=100_000))
    text = "a" * 40_000
    _, answer = await server.post(
        "/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "max_tokens": 8}
    )
    assert answer["usage"]["prompt_tokens"] == len(render({"role": "user", "content": text}))


async def test_a_stream_is_valid_json_lines_for_any_text(server: RunningServer) -> None:
    text = '"quotes" \\ \x07 \u2028 data: [DONE]\n\n'
    data = await server.stream_bytes("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]})
    said = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks_of(data))
    assert said == render({"role": "user", "content": text})
    assert json.loads(read_all(data)[1].text)["object"] == "chat.completion.chunk"


async def test_a_whole_answer_has_the_fields_that_vllms_clients_look_for(server: RunningServer) -> None:
    _, answer = await server.post("/v1/chat/completions", {"messages": HELLO, "max_tokens": 1})
    names = ("prompt_logprobs", "prompt_token_ids", "metrics", "kv_transfer_params")
    assert [answer[name] for name in names] == [None] * 4
    assert (answer["choices"][0]["token_ids"], answer["choices"][0]["message"]["reasoning"]) == (None, None)
    (chunk, *_) = chunks_of(await server.stream_bytes("/v1/chat/completions", {"messages": HELLO}))
    assert chunk.keys().isdisjoint(names)
    assert "token_ids" not in chunk["choices"][0]


async def test_parts_of_messages_as_other_apis_have_them(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(max_model_len=2000))
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "HM"}]}
    messages = [
        {"role": "user", "content": [{"type": "input_text", "text": "A"}]},
        {"role": "assistant", "content": [thinking, {"type": "output_text", "text": "B"}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "C"}]},
        {"role": "tool", "tool_call_id": "1", "content": None},
    ]
    status, shown = await server.post("/v1/chat/completions/render", {"messages": messages})
    assert status == 200, shown
    text = bytes(token for token in shown["token_ids"] if token < 256).decode()
    assert [letter for letter in text if letter in "ABC"] == ["A", "B", "C"]
    assert "HM" not in text  # it is the reasoning, which this template leaves out
    status, answer = await server.post("/v1/chat/completions", {"messages": HELLO, "max_tokens": 1, "logprobs": 1})
    assert (status, len(answer["choices"][0]["logprobs"]["content"])) == (200, 1)
    _, answer = await server.post("/v1/chat/completions", {"messages": HELLO, "max_tokens": 1, "logprobs": 0})
    assert answer["choices"][0]["logprobs"] is None


BEGUN = [*HELLO, {"role": "assistant", "content": "An apple"}]


async def test_an_answer_may_begin_with_the_message_that_it_goes_on_with(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(respond=lambda *_: list(b" a day")))
    body = {"messages": BEGUN, "echo": True, "continue_final_message": True, "add_generation_prompt": False, "n": 2}
    _, answer = await server.post("/v1/chat/completions", body)
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["An apple a day"] * 2
    chunks = chunks_of(await server.stream_bytes("/v1/chat/completions", body))
    for index in (0, 1):
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert deltas[0] == {"role": "assistant", "content": "An apple"}
        assert "".join(delta.get("content", "") for delta in deltas) == "An apple a day"
    async with open_socket(server) as socket:
        await send(socket, type="generate", id="x", **body)
        _, *told, _ = await read_to_end(socket, "x")
    assert "".join(delta["text"] for delta in told if delta["index"] == 1) == "An apple a day"
    server.engine.submitted.clear()
    _, answer = await server.post("/v1/chat/completions", {**body, "messages": HELLO, "n": 1})
    assert answer["choices"][0]["message"]["content"] == "hello a day"  # it goes on with the user's message
    _, answer = await server.post("/v1/chat/completions", {"messages": HELLO, "echo": True})
    assert answer["choices"][0]["message"]["content"] == " a day"


async def test_an_echo_stands_before_calls_and_takes_no_tokens(start_server: StartServer) -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    server = await start_server(FakeEngineClient(respond=lambda *_: list(call.encode())))
    tools = [{"type": "function", "function": {"name": "f"}}]
    body = {"messages": BEGUN, "echo": True, "tools": tools, "return_token_ids": True, "logprobs": True}
    _, answer = await server.post("/v1/chat/completions", body)
    (choice,) = answer["choices"]
    assert (choice["message"]["content"], len(choice["message"]["tool_calls"])) == ("An apple", 1)
    first, *chunks = chunks_of(await server.stream_bytes("/v1/chat/completions", body))
    assert first["choices"][0]["delta"]["content"] == "An apple"
    assert (first["choices"][0]["token_ids"], first["choices"][0]["logprobs"]) == ([], None)
    assert first["prompt_token_ids"] == answer["prompt_token_ids"]
    assert [token for chunk in chunks for token in chunk["choices"][0]["token_ids"]] == choice["token_ids"]


async def test_logprobs_of_the_prompt_are_told_where_the_first_tokens_have_several_parts(
    start_server: StartServer,
) -> None:
    server = await start_server(FakeEngineClient(respond=lambda *_: list(b" a day")))
    body = {"messages": BEGUN, "echo": True, "logprobs": True, "prompt_logprobs": 0}
    told = [
        chunk.get("prompt_logprobs") for chunk in chunks_of(await server.stream_bytes("/v1/chat/completions", body))
    ]
    _, whole = await server.post("/v1/chat/completions", body)
    assert whole["prompt_logprobs"]
    assert [each for each in told if each is not None] == [whole["prompt_logprobs"]]


FILE = {"filename": "a.txt", "file_data": "data:text/plain;base64,VElERQ=="}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (["A", "B"], "A\nB"),
        ([{"text": "A"}], "A"),
        ({"type": "text", "text": "A"}, "A"),
        ([{"type": "text", "text": {"value": "A", "annotations": []}}], "A"),
        ([{"type": "file", "file": FILE}, "B"], "a.txt:\nTIDE\nB"),
    ],
)
async def test_texts_of_messages_in_other_forms(server: RunningServer, content: object, text: str) -> None:
    status, answer = await server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": content}]})
    assert status == 200, answer
    assert bytes(server.engine.submitted[-1].prompt_token_ids).decode() == f"user:{text}\nassistant:"


@pytest.mark.parametrize(
    "part",
    [{"type": "file", "file": {"file_id": "f"}}, {"type": "file", "file": {"file_data": "JVBERi0="}}, {"a": 1}, 5],
)
async def test_parts_that_are_no_text_are_named(server: RunningServer, part: object) -> None:
    status, answer = await server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": [part]}]})
    assert (status, answer["error"]["param"]) == (400, "messages[0].content")
