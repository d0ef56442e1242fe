"""Reasoning over every transport: apart from the answer, counted, left out, and told to the template again."""

from __future__ import annotations

from typing import Any

import pytest
from openai import AsyncOpenAI

from server.text.tokenization.control_tokens import ControlTokens
from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.grammar_walk import allowed_tokens
from tests.fakes.text_model import FakeTextModel, FakeTokenizer
from tests.server.conftest import RunningServer, StartServer
from tests.server.support.socket_client import open_socket, read_to_end, send

ASK: list[Any] = [{"role": "user", "content": "Why?"}]
TEMPLATE = (
    "{{ reasoning_effort }}{{ enable_thinking }}"
    "{% for m in messages %}{{ m.role }}:"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}|{% endfor %}"
    "{% if enable_thinking is not defined %}<think>\n{% endif %}"
)
ANSWER = "Let me see.\n</think>\n\nBecause."
NUM_REASONING = ANSWER.index("</think>") + len("</think>")


async def begin(start_server: StartServer, text: str = ANSWER, **settings: Any) -> RunningServer:
    engine = FakeEngineClient(respond=lambda *_: list(text.encode()))
    return await start_server(engine, text_model=FakeTextModel(TEMPLATE), **settings)


async def test_a_whole_answer(start_server: StartServer) -> None:
    server = await begin(start_server)
    _, answer = await server.post("/v1/chat/completions", {"messages": ASK, "n": 2})
    for choice in answer["choices"]:
        assert choice["message"] == {
            "role": "assistant",
            "content": "Because.",
            "reasoning_content": "Let me see.",
            "reasoning": "Let me see.",
            "refusal": None,
        }
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2 * NUM_REASONING}


async def test_a_stream_through_the_official_client(start_server: StartServer) -> None:
    server = await begin(start_server)
    client = AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    stream = await client.chat.completions.create(
        model="fake", messages=ASK, stream=True, stream_options={"include_usage": True}
    )
    reasoning, content, usage = "", "", None
    async for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            more = getattr(choice.delta, "reasoning_content", None) or ""
            assert not (more and content), "the reasoning comes before the answer"
            reasoning, content = reasoning + more, content + (choice.delta.content or "")
    assert (reasoning, content) == ("Let me see.", "Because.")
    assert usage is not None
    assert usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.reasoning_tokens == NUM_REASONING
    await client.close()


async def test_a_socket_tells_of_it(start_server: StartServer) -> None:
    server = await begin(start_server)
    async with open_socket(server) as socket:
        await send(socket, type="generate", id="x", messages=ASK)
        _, *deltas, done = await read_to_end(socket, "x")
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Let me see."
    assert "".join(delta["text"] for delta in deltas) == "Because."
    assert done["usage"]["completion_tokens_details"] == {"reasoning_tokens": NUM_REASONING}


@pytest.mark.parametrize("stream", [False, True])
async def test_it_is_left_out_on_demand(start_server: StartServer, stream: bool) -> None:
    server = await begin(start_server)
    body = {"messages": ASK, "include_reasoning": False}
    if stream:
        told = (await server.stream_bytes("/v1/chat/completions", body)).decode()
        assert "Let" not in told
        assert "Because" not in told.split('"content":')[0]
    else:
        _, answer = await server.post("/v1/chat/completions", body)
        message = answer["choices"][0]["message"]
        assert (message["content"], message["reasoning_content"], message["reasoning"]) == ("Because.", None, None)


async def test_the_flag_turns_it_off(start_server: StartServer) -> None:
    server = await begin(start_server, reasoning_parser="none")
    _, answer = await server.post("/v1/chat/completions", {"messages": ASK})
    assert answer["choices"][0]["message"]["content"] == ANSWER
    assert "completion_tokens_details" not in answer["usage"]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_an_answer_that_comes_back_is_told_to_the_template(start_server: StartServer, name: str) -> None:
    server = await begin(start_server)
    answered = {"role": "assistant", "content": "Because.", name: "Let me see."}
    status, _ = await server.post("/v1/chat/completions", {"messages": [*ASK, answered, *ASK]})
    assert status == 200
    prompt = bytes(server.engine.submitted[0].prompt_token_ids).decode()
    assert prompt == "user:Why?|assistant:<think>Let me see.</think>Because.|user:Why?|<think>\n"


async def test_no_effort_is_told_to_the_template(start_server: StartServer) -> None:
    server = await begin(start_server, "Because.")
    _, answer = await server.post("/v1/chat/completions", {"messages": ASK, "reasoning_effort": "none"})
    assert bytes(server.engine.submitted[0].prompt_token_ids).decode() == "noneFalseuser:Why?|"
    assert answer["choices"][0]["message"]["content"] == "Because."
    status, answer = await server.post("/v1/chat/completions", {"messages": ASK, "reasoning_effort": "much"})
    assert (status, answer["error"]["param"]) == (400, "reasoning_effort")


CHOICE = {"structured_outputs": {"choice": ["yes", "no"]}}


@pytest.mark.parametrize("text", ["Hm.</think>yes", "Hm.\n</think>yes"])
async def test_a_grammar_begins_behind_it(start_server: StartServer, text: str) -> None:
    server = await begin(start_server, text)
    _, answer = await server.post("/v1/chat/completions", {"messages": ASK, **CHOICE})
    message = answer["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "yes")


async def test_what_breaks_the_grammar_behind_it_is_refused(start_server: StartServer) -> None:
    server = await begin(start_server, "yes</think>maybe")
    status, answer = await server.post("/v1/chat/completions", {"messages": ASK, **CHOICE})
    assert (status, answer["error"]["code"]) == (400, "dead_end")


async def test_an_answer_by_a_grammar_may_have_none(start_server: StartServer) -> None:
    server = await begin(start_server, "yes")
    body = {"messages": ASK, "chat_template_kwargs": {"enable_thinking": False}, **CHOICE}
    _, answer = await server.post("/v1/chat/completions", body)
    assert answer["choices"][0]["message"]["content"] == "yes"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
async def test_a_budget_reaches_the_engine(start_server: StartServer, path: str) -> None:
    """The fake engine writes what it wants; the matcher says what it would have had to write."""
    server = await begin(start_server, "<think>Hm")
    budget = (
        {"thinking": {"type": "enabled", "budget_tokens": 2}} if "messages" in path else {"thinking_token_budget": 2}
    )
    asked = {"input": "Why?"} if "responses" in path else {"messages": ASK}
    status, answer = await server.post(
        path, {"model": "fake", **({"max_tokens": 9} if "messages" in path else {}), **asked, **budget}
    )
    assert status == 200, answer
    (stream,) = server.engine.submitted
    assert stream.matcher is not None
    assert allowed_tokens(stream.matcher, 260).tolist() == [ord("<")]


async def test_what_no_budget_can_be(start_server: StartServer) -> None:
    server = await begin(start_server)
    for wrong in (-2, "2", 1.5):
        status, answer = await server.post("/v1/chat/completions", {"messages": ASK, "thinking_token_budget": wrong})
        assert (status, answer["error"]["param"]) == (400, "thinking_token_budget")
    for much in (-1, 10**12):  # the first is vLLM's word for no limit
        status, _ = await server.post("/v1/chat/completions", {"messages": ASK, "thinking_token_budget": much})
        assert status == 200
    assert [stream.matcher is None for stream in server.engine.submitted] == [True, False]


class WithThinkTokens(FakeTokenizer):
    """Mistral's markers, which are control tokens there."""

    control = ControlTokens({"[THINK]": 256, "[/THINK]": 258})

    def encode(self, text: str, *, add_special_tokens: bool, max_tokens: int | None = None) -> list[int]:
        ids = self.control.ids
        return [ids[text]] if text in ids else super().encode(text, add_special_tokens=add_special_tokens)

    def token_text(self, token_id: int) -> str:
        return {256: "[THINK]", 258: "[/THINK]"}.get(token_id) or super().token_text(token_id)


async def test_markers_that_are_control_tokens(start_server: StartServer) -> None:
    text_model = FakeTextModel("{% for m in messages %}{{ m.content }}{% endfor %}{# [THINK] #}")
    text_model.tokenizer = WithThinkTokens()
    engine = FakeEngineClient(respond=lambda *_: [256, *b"Let me see.", 258, *b"Because."])
    server = await start_server(engine, text_model=text_model)
    _, answer = await server.post("/v1/chat/completions", {"messages": ASK})
    message = answer["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Let me see.", "Because.")
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 13}
    engine.respond = lambda *_: [256, *b"Hm"]
    await server.post("/v1/chat/completions", {"messages": ASK, "thinking_token_budget": 2, "max_tokens": 3})
    matcher = engine.submitted[1].matcher
    assert matcher is not None
    assert allowed_tokens(matcher, 260).tolist() == [258]
