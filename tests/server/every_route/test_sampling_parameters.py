"""Every sampling parameter on its way from the wire to the engine, and every one that is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from sampling.host.params import SamplingParams
from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.text_model import END_OF_TURN
from tests.server.conftest import RunningServer, StartServer

MESSAGES = [{"role": "user", "content": "x"}]
DEFAULT_BREAKER_IDS = (ord("\n"), ord('"'), ord("*"), ord(":"))

# wire name, value, and what it becomes
PARAMETERS: list[tuple[str, Any, dict[str, Any]]] = [
    ("temperature", 0, {"temperature": 0.0}),
    ("temperature", 1.5, {"temperature": 1.5}),
    ("top_p", 0.5, {"top_p": 0.5}),
    ("top_k", 7, {"top_k": 7}),
    ("top_k", -1, {"top_k": -1}),
    ("min_p", 0.25, {"min_p": 0.25}),
    ("typical_p", 0.75, {"typical_p": 0.75}),
    ("top_n_sigma", 1.5, {"top_n_sigma": 1.5}),
    ("top_n_sigma", -1, {"top_n_sigma": 0.0}),
    ("presence_penalty", -2, {"presence_penalty": -2.0}),
    ("frequency_penalty", 0.5, {"frequency_penalty": 0.5}),
    ("repetition_penalty", 1.25, {"repetition_penalty": 1.25}),
    ("dry_multiplier", 0.5, {"dry_multiplier": 0.5, "dry_breaker_ids": DEFAULT_BREAKER_IDS}),
    ("dry_base", 2, {"dry_base": 2.0}),
    ("dry_allowed_length", 4, {"dry_allowed_length": 4}),
    ("dry_penalty_last_n", 100, {"dry_penalty_last_n": 100}),
    ("xtc_probability", 0.5, {"xtc_probability": 0.5}),
    ("xtc_threshold", 0.25, {"xtc_threshold": 0.25}),
    ("min_tokens", 3, {"min_tokens": 3}),
    ("seed", -5, {"seed": -5}),
    ("stop_token_ids", [1, 2], {"stop_token_ids": (1, 2)}),
    ("ignore_eos", True, {"ignore_eos": True}),
    ("logit_bias", {"5": -100, "0": 1.5}, {"logit_bias": ((5, -100.0), (0, 1.5))}),
    ("allowed_token_ids", [98, 97, 98], {"allowed_token_ids": (98, 97)}),
    ("bad_words", ["ab", " ab"], {"bad_words": ((97, 98), (32, 97, 98))}),
    ("prompt_logprobs", 2, {"prompt_logprobs": 2}),
]


@pytest.mark.parametrize(("name", "value", "expected"), PARAMETERS)
async def test_each_parameter_reaches_the_engine(
    start_server: StartServer, name: str, value: Any, expected: dict[str, Any]
) -> None:
    server = await start_server(FakeEngineClient(respond=lambda *_: []))
    for path, body in (("completions", {"prompt": "x"}), ("chat/completions", {"messages": MESSAGES})):
        for given in ({name: value}, {name: None}):
            status, answer = await server.post(f"/v1/{path}", {**body, "max_tokens": 4, **given})
            assert status == 200, answer
    plain = SamplingParams(max_tokens=4)
    changed = replace(plain, **expected)
    assert [stream.params for stream in server.engine.submitted] == [changed, plain, changed, plain]


async def test_logprobs_reach_the_engine(server: RunningServer) -> None:
    bodies: list[tuple[str, dict[str, Any], int | None, tuple[int, ...]]] = [
        ("completions", {"prompt": "x", "logprobs": 0}, 0, ()),
        ("completions", {"prompt": "x", "logprobs": 20, "logprob_token_ids": [5, 3]}, 20, (5, 3)),
        ("chat/completions", {"messages": MESSAGES, "logprobs": True}, 0, ()),
        ("chat/completions", {"messages": MESSAGES, "logprobs": True, "top_logprobs": 3}, 3, ()),
        ("chat/completions", {"messages": MESSAGES, "logprobs": False, "top_logprobs": 0}, None, ()),
        ("chat/completions", {"messages": MESSAGES, "logprobs": True, "logprob_token_ids": [7]}, 0, (7,)),
    ]
    for path, body, num_best, listed in bodies:
        status, answer = await server.post(f"/v1/{path}", body)
        assert status == 200, answer
        params = server.engine.submitted[-1].params
        assert (params.logprobs, params.logprob_token_ids) == (num_best, listed)


@pytest.mark.parametrize(
    ("breakers", "expected"),
    [
        (["a", "</t>"], (ord("a"), END_OF_TURN)),
        (["<"], (ord("<"), 256, 257, 258, 259)),
        (["no token has this"], ()),
        ([], ()),
    ],
)
async def test_breakers_are_the_tokens_that_have_them(
    server: RunningServer, breakers: list[str], expected: tuple[int, ...]
) -> None:
    body = {"prompt": "x", "dry_multiplier": 1, "dry_sequence_breakers": breakers}
    assert (await server.post("/v1/completions", body))[0] == 200
    assert server.engine.submitted[-1].params.dry_breaker_ids == expected


async def test_answers_of_one_request_share_all_but_the_seed(server: RunningServer) -> None:
    body = {"prompt": ["a", "b"], "n": 2, "bad_words": ["z"], "min_p": 0.5}
    assert (await server.post("/v1/completions", body))[0] == 200
    assert len({id(stream.params) for stream in server.engine.submitted}) == 1
    assert (await server.post("/v1/completions", {**body, "seed": 3}))[0] == 200
    plain = server.engine.submitted[0].params
    assert [stream.params for stream in server.engine.submitted[4:]] == [
        replace(plain, seed=seed) for seed in (3, 4, 3, 4)
    ]


async def test_min_tokens_may_need_a_larger_limit(server: RunningServer) -> None:
    status, answer = await server.post("/v1/completions", {"prompt": "x", "min_tokens": 17})
    assert (status, answer["error"]["param"]) == (400, "min_tokens")
    assert answer["error"]["message"] == "min_tokens is 17; it must be at most max_tokens, 16"
    status, _ = await server.post("/v1/chat/completions", {"messages": MESSAGES, "min_tokens": 17})
    assert status == 200


async def test_stop_strings_wait_for_min_tokens(server: RunningServer) -> None:
    body = {"prompt": "abXcdXefX", "stop": "X", "max_tokens": 9, "return_token_ids": True}
    for min_tokens, text in ((0, "ab"), (2, "ab"), (3, "abXcd"), (5, "abXcd"), (6, "abXcdXef"), (9, "abXcdXefX")):
        _, answer = await server.post("/v1/completions", {**body, "min_tokens": min_tokens})
        choice = answer["choices"][0]
        assert choice["text"] == text
        assert choice["finish_reason"] == ("length" if min_tokens == 9 else "stop")
    _, answer = await server.post("/v1/completions", {**body, "stop": "bX", "min_tokens": 2})
    assert answer["choices"][0]["text"] == "abXcdXefX"  # it begins within the first two


async def test_half_a_character_at_the_edge_of_min_tokens(server: RunningServer) -> None:
    body = {"prompt": "aéb", "stop": "é", "min_tokens": 2}
    _, answer = await server.post("/v1/completions", body)
    assert answer["choices"][0]["text"] == "a"  # the character is whole with the third token
    _, answer = await server.post("/v1/completions", {**body, "min_tokens": 3})
    assert answer["choices"][0]["text"] == "aéb"


# body, param, what the message must name
REFUSED: list[tuple[dict[str, Any], str, list[str]]] = [
    ({"typical_p": 0}, "typical_p", ["typical_p is 0", "above 0"]),
    ({"typical_p": "1"}, "typical_p", ['typical_p is "1"', "a number"]),
    ({"top_n_sigma": -2}, "top_n_sigma", ["top_n_sigma is -2", "from 0 to 1000"]),
    ({"presence_penalty": 2.5}, "presence_penalty", ["presence_penalty is 2.5", "from -2 to 2"]),
    ({"frequency_penalty": True}, "frequency_penalty", ["frequency_penalty is true", "a number"]),
    ({"repetition_penalty": 0}, "repetition_penalty", ["repetition_penalty is 0", "above 0"]),
    ({"dry_multiplier": -1}, "dry_multiplier", ["dry_multiplier is -1", "from 0 to 100"]),
    ({"dry_base": 0.5}, "dry_base", ["dry_base is 0.5", "from 1 to 10"]),
    ({"dry_allowed_length": 0}, "dry_allowed_length", ["dry_allowed_length is 0", "from 1"]),
    ({"dry_allowed_length": 1.5}, "dry_allowed_length", ["1.5", "an integer"]),
    ({"dry_penalty_last_n": -2}, "dry_penalty_last_n", ["dry_penalty_last_n is -2", "from -1"]),
    ({"dry_sequence_breakers": "x"}, "dry_sequence_breakers", ['is "x"', "a list of strings"]),
    ({"dry_sequence_breakers": [1]}, "dry_sequence_breakers", ["is [1]", "a list of strings"]),
    ({"dry_sequence_breakers": ["x"] * 17}, "dry_sequence_breakers", ["17 entries", "at most 16"]),
    ({"dry_sequence_breakers": [""]}, "dry_sequence_breakers", ["0 characters", "from 1 to 32"]),
    ({"dry_sequence_breakers": ["x" * 33]}, "dry_sequence_breakers", ["33 characters", "from 1 to 32"]),
    ({"xtc_probability": 1.5}, "xtc_probability", ["xtc_probability is 1.5", "from 0 to 1"]),
    ({"xtc_threshold": -0.5}, "xtc_threshold", ["xtc_threshold is -0.5", "from 0 to 1"]),
    ({"min_tokens": -1}, "min_tokens", ["min_tokens is -1", "at least 0"]),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens", ["min_tokens is 9", "at most max_tokens, 8"]),
    ({"stop_token_ids": [260]}, "stop_token_ids", ["260", "from 0 to 259"]),
    ({"logit_bias": [1]}, "logit_bias", ["logit_bias is [1]", "an object"]),
    ({"logit_bias": {"a": 1}}, "logit_bias", ['the key "a"', "a token id in digits"]),
    ({"logit_bias": {"-1": 1}}, "logit_bias", ['the key "-1"', "in digits"]),
    ({"logit_bias": {"a": 1, "5": 1, "b": 2}}, "logit_bias", ['the keys "a", "b"', "in digits"]),
    ({"logit_bias": {f"k{at}": 1 for at in range(20)}}, "logit_bias", ['"k0"', '"k7" and 12 more']),
    ({"logit_bias": {"05": 1}}, "logit_bias", ['the key "05"', "in digits"]),
    ({"logit_bias": {"٣": 1}}, "logit_bias", ["the key", "in digits"]),
    ({"logit_bias": {"9" * 5000: 1}}, "logit_bias", ["the key", "in digits"]),
    ({"logit_bias": {"5": "1"}}, "logit_bias", ['of token 5 is "1"', "a number"]),
    ({"logit_bias": {"5": True}}, "logit_bias", ["of token 5 is true", "a number"]),
    ({"logit_bias": {"5": {"6": 1}}}, "logit_bias", ["of token 5 is", "a number"]),
    ({"logit_bias": {"5": 101}}, "logit_bias", ["of token 5 is 101", "from -100 to 100"]),
    ({"logit_bias": {"5": -1e300}}, "logit_bias", ["of token 5 is -1e+300", "from -100 to 100"]),
    ({"logit_bias": {"260": 1}}, "logit_bias", ["260", "from 0 to 259"]),
    ({"logit_bias": {str(key): 1 for key in range(1025)}}, "logit_bias", ["1025 entries", "at most 1024"]),
    ({"allowed_token_ids": []}, "allowed_token_ids", ["allowed_token_ids is empty"]),
    ({"allowed_token_ids": [1, -1]}, "allowed_token_ids", ["-1", "from 0 to 259"]),
    ({"allowed_token_ids": 5}, "allowed_token_ids", ["allowed_token_ids is 5", "a list"]),
    ({"bad_words": "x"}, "bad_words", ['bad_words is "x"', "a list of strings"]),
    ({"bad_words": ["a", 5]}, "bad_words", ["bad_words is", "a list of strings"]),
    ({"bad_words": ["a", ""]}, "bad_words", ["0 characters", "from 1 to 256"]),
    ({"bad_words": ["x" * 257]}, "bad_words", ["257 characters", "from 1 to 256"]),
    ({"bad_words": ["x" * 16]}, "bad_words", ["makes 17 tokens", "from 1 to 16"]),
    ({"bad_words": ["x"] * 257}, "bad_words", ["257 entries", "at most 256"]),
    (
        {"bad_words": [f"{number:03}" for number in range(129)]},
        "bad_words",
        ["129 entries", "258 sequences of tokens", "at most 256"],
    ),
    ({"best_of": 0}, "best_of", ["best_of is 0", "at least 1"]),
    ({"best_of": 17}, "best_of", ["best_of is 17", "at most 16"]),
    ({"best_of": True}, "best_of", ["best_of is true", "an integer"]),
    ({"best_of": 2, "n": 3}, "best_of", ["best_of is 2", "at least n, 3"]),
    ({"best_of": 2, "stream": True}, "best_of", ["best_of is 2 and n is 1", "streaming"]),
    ({"prompt_logprobs": 21}, "prompt_logprobs", ["prompt_logprobs is 21", "from 0 to 20"]),
    ({"prompt_logprobs": -1}, "prompt_logprobs", ["prompt_logprobs is -1", "from 0 to 20"]),
    ({"prompt_logprobs": True}, "prompt_logprobs", ["prompt_logprobs is true", "an integer"]),
    ({"logprob_token_ids": [5]}, "logprob_token_ids", ["logprobs is not", "needs logprobs"]),
    ({"logprob_token_ids": [5], "best_of": 2}, "logprob_token_ids", ["needs logprobs"]),
]
COMPLETIONS: list[tuple[dict[str, Any], str, list[str]]] = [
    ({"logprobs": 21}, "logprobs", ["logprobs is 21", "from 0 to 20"]),
    ({"logprobs": -1}, "logprobs", ["logprobs is -1", "from 0 to 20"]),
    ({"logprobs": True}, "logprobs", ["logprobs is true", "the number of alternatives, from 0 to 20"]),
    ({"logprobs": "5"}, "logprobs", ['logprobs is "5"', "an integer"]),
    ({"logprobs": 0, "logprob_token_ids": [260]}, "logprob_token_ids", ["260", "from 0 to 259"]),
    ({"logprobs": 0, "logprob_token_ids": [1] * 65}, "logprob_token_ids", ["65 entries", "at most 64"]),
    ({"top_logprobs": 1}, "top_logprobs", ['unknown parameter "top_logprobs"']),
]
CHAT: list[tuple[dict[str, Any], str, list[str]]] = [
    ({"logprobs": 5}, "logprobs", ["logprobs is 5", "true or false", "top_logprobs is the number"]),
    ({"top_logprobs": 5}, "top_logprobs", ["top_logprobs is 5", "logprobs is not true"]),
    ({"top_logprobs": 5, "logprobs": False}, "top_logprobs", ["top_logprobs is 5", "logprobs is not true"]),
    ({"top_logprobs": 21, "logprobs": True}, "top_logprobs", ["top_logprobs is 21", "at most 20"]),
    ({"top_logprobs": -1, "logprobs": True}, "top_logprobs", ["top_logprobs is -1", "at least 0"]),
    ({"top_logprobs": True, "logprobs": True}, "top_logprobs", ["top_logprobs is true", "an integer"]),
]


@pytest.mark.parametrize(
    ("path", "case"),
    [("completions", case) for case in [*REFUSED, *COMPLETIONS]]
    + [("chat/completions", case) for case in [*REFUSED, *CHAT]],
    ids=lambda value: json.dumps(value[0])[:60] if isinstance(value, tuple) else value,
)
async def test_what_is_refused(server: RunningServer, path: str, case: tuple[dict[str, Any], str, list[str]]) -> None:
    body, param, named = case
    start = {"prompt": "a"} if path == "completions" else {"messages": MESSAGES}
    status, answer = await server.post(f"/v1/{path}", {**start, **body})
    error = answer["error"]
    assert (status, error["type"], error["param"]) == (400, "invalid_request_error", param), error
    assert error["code"] == ("unknown_parameter" if "unknown" in error["message"] else "invalid_value")
    for words in named:
        assert words in error["message"]
    assert len(error["message"]) < 400
    assert server.engine.submitted == []
