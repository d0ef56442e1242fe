"""Every list of a body has a bound, and a bad one is found out at its first bad item."""

from __future__ import annotations

import time
from typing import Any

import orjson
import pytest

from server.api.openai.chat_request import MAX_MESSAGES, MAX_PARTS, ChatCompletionRequest
from server.api.openai.completion_request import MAX_PROMPT_TOKENS, CompletionRequest
from server.protocol.errors import ApiError, to_api_error
from server.protocol.json_limits import (
    MAX_CONTAINERS,
    MAX_KEYS,
    MAX_VALUES,
    is_longer,
    parse_json,
    refuse_too_many_values,
)
from server.protocol.sampling_fields import MAX_ALLOWED_IDS


def refusal(kind: type[ChatCompletionRequest | CompletionRequest], body: Any) -> ApiError:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever it is, a client gets it as an ApiError
        kind.parse(body)
    error = to_api_error(caught.value)
    assert error.status == 400
    return error


@pytest.mark.parametrize(
    ("kind", "body", "param", "limit"),
    [
        (ChatCompletionRequest, {"messages": [1] * (MAX_MESSAGES + 1)}, "messages", MAX_MESSAGES),
        (
            ChatCompletionRequest,
            {"messages": [{"role": "user", "content": [1] * (MAX_PARTS + 1)}]},
            "messages[0].content",
            MAX_PARTS,
        ),
        (CompletionRequest, {"prompt": [[]] * 65}, "prompt", 64),
        (CompletionRequest, {"prompt": [1] * (MAX_PROMPT_TOKENS + 1)}, "prompt", MAX_PROMPT_TOKENS),
        (CompletionRequest, {"prompt": "a", "stop": [1] * 17}, "stop", 16),
        (CompletionRequest, {"prompt": "a", "stop_token_ids": ["a"] * 65}, "stop_token_ids", 64),
        (CompletionRequest, {"prompt": "a", "logprob_token_ids": ["a"] * 65}, "logprob_token_ids", 64),
        (
            CompletionRequest,
            {"prompt": "a", "allowed_token_ids": ["a"] * (MAX_ALLOWED_IDS + 1)},
            "allowed_token_ids",
            MAX_ALLOWED_IDS,
        ),
        (
            CompletionRequest,
            {"prompt": "a", "structured_outputs": {"choice": [1] * 1001}},
            "structured_outputs",
            1000,
        ),
        (CompletionRequest, {"prompt": "a", "bad_words": [1] * 257}, "bad_words", 256),
        (CompletionRequest, {"prompt": "a", "dry_sequence_breakers": [1] * 17}, "dry_sequence_breakers", 16),
        (CompletionRequest, {"prompt": "a", "logit_bias": {str(n): "a" for n in range(1025)}}, "logit_bias", 1024),
    ],
)
def test_the_length_is_checked_before_the_items(kind: Any, body: Any, param: str, limit: int) -> None:
    error = refusal(kind, body)
    assert error.param == param
    assert f" {limit}" in error.message
    assert "entries" in error.message or "prompts" in error.message or "token ids" in error.message


@pytest.mark.parametrize(
    "body",
    [{"messages": [1] * MAX_MESSAGES}, {"messages": [{"role": "user", "content": "a", "nam": 1}] * MAX_MESSAGES}],
)
def test_one_error_is_made_and_not_thousands(body: Any) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - pydantic's
        ChatCompletionRequest.parse(body)
    assert caught.value.error_count() == 1  # type: ignore[attr-defined]


def test_a_hundred_thousand_unknown_names_cost_little() -> None:
    body = {"prompt": "a", **{f"k{number}": 1 for number in range(100_000)}}
    started = time.thread_time()
    error = refusal(CompletionRequest, body)
    assert time.thread_time() - started < 1.0
    assert (error.param, error.code) == ("k64", "unknown_parameter")
    assert "more than 64 unknown parameters" in error.message
    message = {"role": "user", "content": "a", **{f"k{number}": 1 for number in range(1000)}}
    error = refusal(ChatCompletionRequest, {"messages": [message]})
    assert (error.param, error.code) == ("messages[].k64", "unknown_parameter")


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"[" + b",".join([b"[]"] * MAX_CONTAINERS) + b"]", "lists and objects"),
        (b"[" + b",".join([b"1"] * (MAX_VALUES + 2)) + b"]", "values"),
        (b"{" + b",".join(b'"%d":1' % n for n in range(MAX_KEYS + 1)) + b"}", "names"),
        (
            b'["\\\\",' + b",".join([b'"\\"[{"']) + b"," + b",".join([b"{}"] * MAX_CONTAINERS) + b"]",
            "lists and objects",
        ),
    ],
)
def test_too_many_values_are_refused_before_they_are_parsed(body: bytes, what: str) -> None:
    with pytest.raises(ApiError, match=what) as caught:
        parse_json(body)
    assert caught.value.code == "too_many_values"


def test_values_of_several_texts_count_together() -> None:
    lists = "[" + ",".join(["[]"] * 20_000) + "]"
    refuse_too_many_values([lists, '"' + "[" * 40_000 + '"', '"{' * 3], "arguments")  # brackets within texts
    with pytest.raises(ApiError, match=r"the text has at least 4000\d lists and objects"):
        refuse_too_many_values(['["cut', lists, lists], "text")


def test_no_more_of_a_value_is_looked_at_than_is_asked_for() -> None:
    value = {"ab": [1, None, "cde", {"f": {}}]}  # 7 values, and 6 characters
    assert not is_longer(value, 13)
    assert is_longer(value, 12)

    class Unread(list[int]):
        def __iter__(self) -> Any:
            raise AssertionError

    assert is_longer(["x" * 10, Unread(range(11))], 10)


@pytest.mark.parametrize(
    "value",
    [
        "[{,:" * 200_000,
        'a"[{,:' * 100_000,
        "\\" * 70_001 + '"[,' * 60_000,
        {"a": ["\\", "[" * 50_000, '\\"', "{" * 50_000, '"']},
        ["é[" * 40_000, 1],
    ],
)
def test_marks_in_texts_do_not_count(value: Any) -> None:
    assert parse_json(orjson.dumps(value)) == value
    assert parse_json(orjson.dumps(value).decode()) == value


def test_an_answer_as_a_library_sends_it_back() -> None:
    answer = {
        "role": "assistant", "content": None, "refusal": None, "annotations": [], "audio": None,
        "function_call": None, "tool_calls": None, "reasoning_content": None, "tool_call_id": None, "name": None,
    }  # fmt: skip
    request = ChatCompletionRequest.parse({"messages": [{"role": "user", "content": "a"}, answer]})
    assert [message.to_template("messages[]") for message in request.messages] == [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": ""},
    ]
    tool = {"role": "tool", "content": "4", "tool_call_id": "t1"}
    thought = {"role": "assistant", "content": "b", "reasoning_content": "hm", "tool_calls": [], "refusal": ""}
    request = ChatCompletionRequest.parse({"messages": [tool, thought]})
    assert [message.to_template("messages[]") for message in request.messages] == [
        tool,
        {"role": "assistant", "content": "b", "reasoning_content": "hm"},
    ]


def test_what_would_change_the_answer_is_refused_by_name() -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "audio": {"id": "a"}}]
    error = refusal(ChatCompletionRequest, {"messages": messages})
    assert (error.param, error.code) == ("messages[1].audio", "unsupported_parameter")


def test_a_refusal_is_what_the_assistant_said() -> None:
    message = {"role": "assistant", "content": None, "refusal": "I will not"}
    request = ChatCompletionRequest.parse({"messages": [message, {**message, "content": "No."}]})
    assert [sent.content for sent in request.messages] == ["I will not", "No."]


def test_only_an_assistant_may_be_silent() -> None:
    assert refusal(ChatCompletionRequest, {"messages": [{"role": "user", "content": None}]}).param == (
        "messages[0].content"
    )
