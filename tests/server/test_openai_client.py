"""The official client library against the application."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionChunk

from tests.fakes.engine_client import logprob_of
from tests.fakes.text_model import EOS, render
from tests.server.conftest import RunningServer


@pytest.fixture
async def client(server: RunningServer) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


async def test_completion(client: AsyncOpenAI) -> None:
    completion = await client.completions.create(model="fake", prompt="tide", max_tokens=20, temperature=0)
    assert completion.object == "text_completion"
    assert completion.choices[0].text == "tide"
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None
    assert completion.usage.total_tokens == 9


async def test_an_answer_goes_back_as_the_library_has_it(client: AsyncOpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "hello"}]
    answer = await client.chat.completions.create(model="fake", messages=messages)
    text = answer.choices[0].message.content
    for sent_back in (answer.choices[0].message, answer.choices[0].message.model_dump()):
        again = await client.chat.completions.create(
            model="fake", messages=[*messages, sent_back, {"role": "user", "content": "more"}]
        )
        assert again.choices[0].message.content == render(
            messages[0], {"role": "assistant", "content": text}, {"role": "user", "content": "more"}
        )


async def test_completion_streamed(client: AsyncOpenAI) -> None:
    text = ""
    usage = None
    async for chunk in await client.completions.create(
        model="fake", prompt="tide é", stream=True, stream_options={"include_usage": True}
    ):
        text += "".join(choice.text for choice in chunk.choices)
        usage = chunk.usage or usage
    assert text == "tide é"
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (7, 8)


async def test_chat(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="fake",
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "hello"}, {"type": "text", "text": "you"}]},
        ],
        n=2,
    )
    prompt = render({"role": "system", "content": "be brief"}, {"role": "user", "content": "hello\nyou"})
    assert answer.object == "chat.completion"
    assert [choice.message.content for choice in answer.choices] == [prompt, prompt]
    assert [choice.message.role for choice in answer.choices] == ["assistant", "assistant"]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(prompt)
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


async def test_chat_streamed(client: AsyncOpenAI) -> None:
    chunks: list[ChatCompletionChunk] = [
        chunk
        async for chunk in await client.chat.completions.create(
            model="fake",
            messages=[{"role": "user", "content": "hello"}],
            stream=True,
            stream_options={"include_usage": True},
        )
    ]
    *spoken, last = chunks
    assert [chunk.choices[0].delta.role for chunk in spoken] == ["assistant"] + [None] * (len(spoken) - 1)
    assert spoken[0].choices[0].delta.content
    text = "".join(chunk.choices[0].delta.content or "" for chunk in spoken)
    assert text == render({"role": "user", "content": "hello"})
    assert spoken[-1].choices[0].finish_reason == "stop"
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == len(text) + 1


async def test_completion_logprobs(client: AsyncOpenAI) -> None:
    for k in (0, 2):
        completion = await client.completions.create(
            model="fake", prompt="hi", logprobs=k, best_of=2, n=2, logit_bias={"5": -1}, frequency_penalty=0.5
        )
        for choice in completion.choices:
            assert choice.logprobs is not None
            assert choice.logprobs.tokens == ["h", "i", "<e>"]
            assert choice.logprobs.token_logprobs == [logprob_of(token_id) for token_id in (ord("h"), ord("i"), EOS)]
            assert choice.logprobs.text_offset == [0, 1, 2]
            assert choice.logprobs.top_logprobs is not None
            for token, alternatives in zip(choice.logprobs.tokens, choice.logprobs.top_logprobs, strict=True):
                assert [*alternatives] == [token, "\x00", "\x01"][: k + 1]


async def test_completion_logprobs_streamed(client: AsyncOpenAI) -> None:
    tokens: list[str] = []
    offsets: list[int] = []
    async for chunk in await client.completions.create(model="fake", prompt="h🌊i", logprobs=1, stream=True):
        logprobs = chunk.choices[0].logprobs
        assert logprobs is not None
        assert logprobs.tokens is not None
        assert logprobs.text_offset is not None
        tokens += logprobs.tokens
        offsets += logprobs.text_offset
    assert tokens == ["h", *["\ufffd"] * 4, "i", "<e>"]
    assert offsets == [0, 1, 1, 1, 1, 2, 3]


async def test_chat_logprobs(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": "x"}], logprobs=True, top_logprobs=2, max_tokens=3
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [entry.token for entry in logprobs.content] == list("use")
    for entry in logprobs.content:
        assert entry.logprob == logprob_of(ord(entry.token))
        assert entry.bytes == list(entry.token.encode())
        assert [(best.token, best.logprob, best.bytes) for best in entry.top_logprobs] == [
            ("\x00", -1 / 32, [0]),
            ("\x01", -2 / 32, [1]),
        ]


async def test_chat_logprobs_streamed(client: AsyncOpenAI) -> None:
    entries = [
        entry
        async for chunk in await client.chat.completions.create(
            model="fake", messages=[{"role": "user", "content": "é"}], logprobs=True, stream=True
        )
        if chunk.choices[0].logprobs is not None
        for entry in chunk.choices[0].logprobs.content or ()
    ]
    text = b"".join(bytes(entry.bytes or ()) for entry in entries).decode()
    assert text == render({"role": "user", "content": "é"})
    assert (entries[-1].token, entries[-1].bytes, entries[-1].top_logprobs) == ("<e>", None, [])


async def test_chat_may_use_the_rest_of_the_context(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": "x"}], extra_body={"ignore_eos": True}
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 512


async def test_leaving_a_stream_aborts(client: AsyncOpenAI, server: RunningServer) -> None:
    server.engine.is_manual = True
    stream = await client.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": "x"}], stream=True, extra_body={"ignore_eos": True}
    )
    async for _ in stream:
        break
    await stream.close()
    await server.assert_all_streams_ended()


async def test_models(client: AsyncOpenAI) -> None:
    models = (await client.models.list()).data
    assert [model.id for model in models] == ["fake"]
    assert (await client.models.retrieve("fake")).to_dict()["max_model_len"] == 512


async def test_errors_become_the_clients_exceptions(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="gpt-4") as not_found:
        await client.chat.completions.create(model="gpt-4", messages=[{"role": "user", "content": "x"}])
    assert not_found.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        await client.completions.create(model="fake", prompt="x", temperature=3)
    assert bad.value.param == "temperature"
