"""Which Python calls are refused before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from sampling.host.params import InvalidParameter, SamplingParams
from server.api.openai.chat_request import ChatCompletionRequest
from server.api.openai.completion_request import CompletionRequest
from server.offline.llm import LLM
from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.text_model import FakeTextModel
from tests.server.offline.conftest import MakeLLM


def test_requests_take_every_sampling_parameter() -> None:
    of_llama_cpp_alone = "drawn_logprobs"
    names = {field.name for field in fields(SamplingParams)} - {"dry_breaker_ids", of_llama_cpp_alone}
    names |= {"dry_sequence_breakers"}
    assert names <= set(CompletionRequest.model_fields)
    assert names | {"top_logprobs"} <= set(ChatCompletionRequest.model_fields)


@pytest.mark.parametrize(
    ("prompt", "options", "param", "message"),
    [
        ("a", {"temperature": 3}, "temperature", "temperature is 3.0; it must be from 0 to 2"),
        ("a", {"max_tokens": 0}, "max_tokens", "max_tokens is 0; it must be at least 1"),
        ("a", {"max_tokens": 1000}, "max_tokens", "max_tokens is 1000"),
        ("a", {"max_token": 5}, "max_token", 'unknown parameter "max_token"'),
        ("a", {"n": 17}, "n", "n is 17; it must be at most 16"),
        ("a", {"n": "2"}, "n", 'n is "2"; it must be an integer'),
        ("a", {"logit_bias": {5: 1}}, "logit_bias", "logit_bias has the key 5; it must be a token id in digits"),
        ("a", {"dry_breaker_ids": [1]}, "dry_breaker_ids", 'unknown parameter "dry_breaker_ids"'),
        ("a", {"logprob_token_ids": [1]}, "logprob_token_ids", "it needs logprobs"),
        ("a", {"best_of": 1, "n": 2}, "best_of", "best_of is 1; it must be at least n, 2"),
        ("a", {"stream": True}, "stream", "stream is a parameter of the HTTP API alone"),
        ("", {}, "prompt", "prompt is empty"),
        ("x" * 600, {}, "prompt", "the prompt has 600 tokens"),
        ([5, 999], {}, "prompt", "the prompt has token id 999"),
        ("\ud800", {}, "prompt", "surrogate"),
        (5, {}, "prompt", "prompt is 5; it must be a text or a list of token ids"),
        ([["a"], 5], {}, "prompt", "prompt"),
    ],
)
def test_what_is_refused(make_llm: MakeLLM, prompt: Any, options: dict[str, Any], param: str, message: str) -> None:
    engine = FakeEngineClient()
    llm = make_llm(engine)
    calls: list[Callable[[], object]] = [lambda: llm.stream(prompt, **options)]
    if isinstance(prompt, str):
        calls.append(lambda: llm.generate(prompt, **options))
    for call in calls:
        with pytest.raises(InvalidParameter) as refused:
            call()
        assert refused.value.param == param
        assert message in str(refused.value)
    with pytest.raises(InvalidParameter) as refused:
        llm.generate(["fine", "fine too", prompt], **options)
    assert refused.value.param == param
    assert str(refused.value).startswith("prompts[0]: " if options else "prompts[2]: ")
    assert engine.submitted == []


def test_params_must_be_as_many_as_prompts(llm: LLM) -> None:
    with pytest.raises(InvalidParameter, match="params has 1 entries for 2 prompts"):
        llm.generate(["a", "b"], [SamplingParams()])


@pytest.mark.parametrize("messages", [[], [{"role": "a pirate", "content": "a"}], [{"role": "user"}], "hello"])
def test_messages_that_are_refused(llm: LLM, messages: Any) -> None:
    for call in (llm.chat, llm.stream_chat, llm.count_tokens):
        if (call == llm.count_tokens and isinstance(messages, str)) or (call == llm.chat and messages == []):
            continue  # a text to count; no conversations at all
        with pytest.raises(InvalidParameter) as refused:
            call(messages)
        assert refused.value.param.startswith("messages")


def test_a_model_that_is_not_made_for_chat(make_llm: MakeLLM) -> None:
    llm = make_llm(text_model=FakeTextModel(chat_template=None))
    with pytest.raises(InvalidParameter, match="no chat template"):
        llm.chat([{"role": "user", "content": "hello"}])
    with pytest.raises(InvalidParameter, match="no chat template"):
        llm.count_tokens([{"role": "user", "content": "hello"}])


def test_a_text_in_the_place_of_messages_is_shown_as_a_message(llm: LLM) -> None:
    for call in (llm.chat, llm.stream_chat):
        with pytest.raises(InvalidParameter) as refused:
            call("hello")  # type: ignore[operator]
        assert str(refused.value) == (
            'messages is "hello"; it must be a list of messages, as in llm.chat([{"role": "user", "content": "hello"}])'
        )


@pytest.mark.parametrize("messages", [5, None, {"role": "user", "content": "hello"}, b"hello"])
def test_what_is_no_list_of_messages_is_refused(llm: LLM, messages: Any) -> None:
    for call in (llm.chat, llm.stream_chat, llm.count_tokens):
        with pytest.raises(InvalidParameter, match="it must be a list of messages, as in") as refused:
            call(messages)  # type: ignore[operator]
        assert refused.value.param == "messages"


@pytest.mark.parametrize("prompts", [5, None, 1.5, b"hello"])
def test_what_is_no_prompt_is_refused(llm: LLM, prompts: Any) -> None:
    for call in (llm.generate, llm.embed):
        with pytest.raises(InvalidParameter, match="it must be a text, a list of token ids, or a list of either"):
            call(prompts)
