"""Makes wire.jsonl: requests of every kind, and what the server answers to them byte for byte.

    python -m tests.golden.make_wire

The file states what clients may rely on, so it is made anew only where an answer is meant to change, and then the
difference is read line by line. `tests/server/wire_player.py` tells what a case may hold and what is noted of an
answer; the engine is the fake of `tests/fakes`, so any machine makes the same file.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import structlog

from tests.server.conftest import server_starter
from tests.server.wire_player import play

OUTPUT = Path(__file__).with_name("wire.jsonl")

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPT = {"prompt": "tide"}
MESSAGES = {"messages": [{"role": "user", "content": "hi"}]}
Case = dict[str, Any]
Exchange = dict[str, Any]

# One of each kind of JSON value, and numbers at the edges of what a parameter may allow.
PROBES: tuple[Any, ...] = ("x", True, 1.5, -1, 0, 3, 10**30, [], [1], {}, None)
SHARED_PARAMETERS = (
    "model", "max_tokens", "n", "best_of", "stop", "include_stop_str_in_output", "response_format",
    "structured_outputs", "stream_options", "return_token_ids", "priority", "cache_salt", "timeout", "user",
    "request_id", "temperature", "top_p", "top_k", "min_p", "typical_p", "top_n_sigma", "presence_penalty",
    "frequency_penalty", "repetition_penalty", "dry_multiplier", "dry_base", "dry_allowed_length",
    "dry_penalty_last_n", "dry_sequence_breakers", "xtc_probability", "xtc_threshold", "min_tokens", "seed",
    "stop_token_ids", "ignore_eos", "logit_bias", "allowed_token_ids", "bad_words", "prompt_logprobs",
    "logprob_token_ids", "logprobs", "add_generation_prompt", "chat_template", "chat_template_kwargs",
    "continue_final_message", "metadata", "return_progress", "service_tier", "store", "stream_interval",
    "truncate_prompt_tokens",
)  # fmt: skip
COMPLETION_PARAMETERS = ("prompt", "echo", "suffix", "messages", "top_logprobs", "max_completion_tokens", "temprature")
CHAT_PARAMETERS = (
    "messages", "prompt", "top_logprobs", "max_completion_tokens", "audio", "function_call", "functions", "modalities",
    "parallel_tool_calls", "prediction", "reasoning_effort", "tool_choice", "tools", "verbosity", "web_search_options",
    "echo", "suffix", "temprature",
)  # fmt: skip

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
# What an answer must be, and the answer.
WISHES: tuple[tuple[dict[str, Any], str], ...] = (
    ({"response_format": {"type": "json_object"}}, '{"b":[1]}'),
    ({"response_format": JSON_SCHEMA}, '{"a": 12}'),
    ({"response_format": {"type": "text"}}, "any text"),
    ({"response_format": {"type": "text"}, "structured_outputs": {"regex": "a+b"}}, "aaab"),
    ({"structured_outputs": {"json": SCHEMA}}, '{"a":1}'),
    ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, '{"a":1}'),
    ({"structured_outputs": {"json": True}}, '"any"'),
    ({"structured_outputs": {"choice": ["tide", "wave 🌊"]}}, "wave 🌊"),
    ({"structured_outputs": {"grammar": 'start: "a" "b"'}}, "ab"),
    ({"structured_outputs": {"grammar": 'root ::= "x" [0-9]'}}, "x5"),
    ({"structured_outputs": {"regex": "abc"}}, "abx"),  # a dead end
)

# Bodies that both routes take, with what is particular about each.
GOOD: dict[str, dict[str, Any]] = {
    "nothing more": {},
    "n": {"n": 3},
    "n with a seed": {"n": 3, "seed": 7},
    "a seed at the end of the range": {"n": 2, "seed": 2**63 - 1},
    "max_tokens": {"max_tokens": 3},
    "ignore_eos": {"ignore_eos": True, "max_tokens": 9},
    "usage": {"stream_options": {"include_usage": True}},
    "no usage": {"stream_options": {"include_usage": False}},
    "usage of two": {"stream_options": {"include_usage": True}, "n": 2},
    "token ids": {"return_token_ids": True},
    "token ids of two": {"return_token_ids": True, "n": 2},
    "a stop string": {"stop": "d"},
    "stop strings": {"stop": ["xyz", "de", "id"]},
    "a stop string in the output": {"stop": ["id"], "include_stop_str_in_output": True},
    "a stop string that does not come": {"stop": ["dex"], "return_token_ids": True},
    "a stop string held back until min_tokens": {"stop": ["i"], "min_tokens": 3, "max_tokens": 9},
    "a stop token": {"stop_token_ids": [105], "return_token_ids": True},
    "everything of the sampler": {
        "temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "typical_p": 0.95, "top_n_sigma": 1.5,
        "presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.1, "min_tokens": 1, "seed": -5,
        "logit_bias": {"5": -100, "0": 1.5}, "allowed_token_ids": [98, 97, 98], "bad_words": ["ab", " ab", "é"],
        "xtc_probability": 0.5, "xtc_threshold": 0.2, "dry_multiplier": 0.8, "dry_base": 2, "dry_allowed_length": 3,
        "dry_penalty_last_n": 64,
    },
    "values that turn things off": {
        "temperature": 0, "top_p": 1, "top_k": -1, "min_p": 0, "typical_p": 1, "top_n_sigma": -1,
        "repetition_penalty": 1, "stop": [], "stop_token_ids": [], "logit_bias": {}, "bad_words": [],
    },
    "breakers": {"dry_multiplier": 1, "dry_sequence_breakers": ["a", "</t>"]},
    "breakers by default": {"dry_multiplier": 1},
    "no breakers": {"dry_multiplier": 1, "dry_sequence_breakers": []},
    "what the engine is told": {"priority": -3, "cache_salt": "salt", "timeout": 12.5, "user": "somebody"},
    "a long timeout": {"timeout": 1e308},
    "a request_id": {"request_id": "my.id:1-2_3"},
    "the model's name": {"model": "fake"},
    "null everywhere": dict.fromkeys(SHARED_PARAMETERS[:-10]),
    "what asks for nothing": {
        "add_generation_prompt": True, "chat_template_kwargs": {}, "continue_final_message": False, "metadata": {},
        "return_progress": False, "service_tier": "auto", "store": False, "stream_interval": 1,
    },
    "prompt_logprobs": {"prompt_logprobs": 2},
    "prompt_logprobs without alternatives": {"prompt_logprobs": 0, "n": 2},
}  # fmt: skip
GOOD_COMPLETIONS: dict[str, dict[str, Any]] = {
    "best_of": {"best_of": 3},
    "best_of and n": {"best_of": 4, "n": 2, "prompt": ["tide", "ab"], "seed": 1},
    "best_of as large as n": {"best_of": 2, "n": 2},
    "logprobs": {"logprobs": 2},
    "logprobs without alternatives": {"logprobs": 0},
    "logprobs of many": {"logprobs": 20, "max_tokens": 2},
    "logprobs and listed tokens": {"logprobs": 1, "logprob_token_ids": [5, 116, 200]},
    "listed tokens alone": {"logprobs": 0, "logprob_token_ids": [5, 3]},
    "logprobs of two": {"logprobs": 1, "n": 2, "prompt": ["ab", "cé"]},
    "logprobs of characters of several tokens": {"logprobs": 1, "prompt": "é🌊a", "return_token_ids": True},
    "logprobs of a control token": {"logprobs": 0, "prompt": [97, 258, 98]},
    "all logprobs": {"logprobs": 1, "prompt_logprobs": 1, "return_token_ids": True, "n": 2, "prompt": ["ab", "c"]},
    "logprobs and a stop string": {"logprobs": 0, "stop": "id"},
    "token ids as a prompt": {"prompt": [116, 105, 100, 101]},
    "several prompts": {"prompt": ["tide", "wave", "ébb"]},
    "several prompts of token ids": {"prompt": [[97, 98], [99]], "n": 2, "return_token_ids": True},
    "prompts of both kinds": {"prompt": ["ab", [99, 100]]},
    "a prompt of one token": {"prompt": [97]},
    "eight prompts": {"prompt": list("abcdefgh"), "max_tokens": 1},
    "characters of several tokens": {"prompt": "naïve 🌊 日本", "max_tokens": 40},
    "bytes that are no text": {"prompt": [97, 255, 98, 195, 10], "return_token_ids": True},
    "half a character at the end": {"prompt": "aé", "max_tokens": 2},
    "text that JSON escapes": {"prompt": 'a"b\\c\n\t\u2028</script>\u0001', "max_tokens": 40},
    "a prompt that fills the context": {"prompt": "x" * 511},
    "neutral echo and suffix": {"echo": False, "suffix": ""},
    "stop strings across characters": {"prompt": "aébèc", "stop": ["èc", "éx"], "max_tokens": 30},
}
GOOD_CHAT: dict[str, dict[str, Any]] = {
    "logprobs": {"logprobs": True},
    "no logprobs": {"logprobs": False, "top_logprobs": 0},
    "top_logprobs": {"logprobs": True, "top_logprobs": 3, "max_tokens": 3},
    "listed tokens": {"logprobs": True, "logprob_token_ids": [7, 104], "max_tokens": 3},
    "all logprobs": {"logprobs": True, "top_logprobs": 1, "prompt_logprobs": 1, "return_token_ids": True, "n": 2},
    "best_of": {"best_of": 3, "max_tokens": 4},
    "max_completion_tokens": {"max_completion_tokens": 4},
    "both limits": {"max_completion_tokens": 4, "max_tokens": 0},
    "every role": {
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "developer", "content": "d", "name": "dev"},
            {"role": "user", "content": "u", "name": None},
            {"role": "assistant", "content": "é"},
            {"role": "tool", "content": ""},
        ]
    },
    "parts of text": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    },
    "no parts": {"messages": [{"role": "user", "content": []}]},
    "a stop string in the role's place": {"stop": "user"},
    "neutral parameters": {
        "function_call": "none", "functions": [], "modalities": ["text"], "parallel_tool_calls": True,
        "reasoning_effort": "none", "tool_choice": "auto", "tools": [],
    },
}  # fmt: skip

# Bodies that are refused for what no probe of one parameter alone finds.
BAD: tuple[dict[str, Any], ...] = (
    {"max_tokens": 600},
    {"max_tokens": 508, "min_tokens": 509},
    {"min_tokens": 9, "max_tokens": 8},
    {"best_of": 2, "n": 3},
    {"best_of": 2, "stream": True},
    {"best_of": 17},
    {"n": 17},
    {"temperature": 2.01},
    {"top_k": 2**70},
    {"presence_penalty": 2.5},
    {"frequency_penalty": -2.5},
    {"repetition_penalty": 10.5},
    {"dry_multiplier": 100.5},
    {"top_n_sigma": 1000.5},
    {"dry_penalty_last_n": 2**31},
    {"seed": -(2**63) - 1},
    {"priority": -(2**31) - 1},
    {"cache_salt": "x" * 257},
    {"request_id": "a b"},
    {"request_id": "x" * 129},
    {"model": "other"},
    {"model": "x" * 200},
    {"foo": 1, "bar": 2},
    {"k" * 300: 1},
    {"stop": ["a"] * 17},
    {"stop": "x" * 257},
    {"stop": ["a", ""]},
    {"stop_token_ids": [260]},
    {"stop_token_ids": [-1]},
    {"stop_token_ids": ["1"]},
    {"stop_token_ids": [1] * 65},
    {"stream": "yes"},
    {"stream": 1},
    {"stream_options": {}},
    {"stream": False, "stream_options": {"include_usage": True}},
    {"stream": True, "stream_options": {"x": 1}},
    {"stream": True, "stream_options": {"include_usage": 1}},
    {"stream": True, "max_tokens": 0},
    {"dry_sequence_breakers": "x"},
    {"dry_sequence_breakers": [1]},
    {"dry_sequence_breakers": ["x"] * 17},
    {"dry_sequence_breakers": [""]},
    {"dry_sequence_breakers": ["x" * 33]},
    {"logit_bias": {"-1": 1}},
    {"logit_bias": {"05": 1}},
    {"logit_bias": {"٣": 1}},
    {"logit_bias": {"9" * 50: 1}},
    {"logit_bias": {"5": "1"}},
    {"logit_bias": {"5": True}},
    {"logit_bias": {"5": None}},
    {"logit_bias": {"5": {"6": 1}}},
    {"logit_bias": {"5": 101}},
    {"logit_bias": {"5": -1e300}},
    {"logit_bias": {"260": 1}},
    {"logit_bias": {str(key): 1 for key in range(1025)}},
    {"allowed_token_ids": [1, -1]},
    {"allowed_token_ids": [260]},
    {"allowed_token_ids": [1, "a"]},
    {"bad_words": ["a", 5]},
    {"bad_words": ["a", ""]},
    {"bad_words": ["x" * 257]},
    {"bad_words": ["x" * 16]},
    {"bad_words": ["x"] * 257},
    {"bad_words": [f"{number:03}" for number in range(129)]},
    {"prompt_logprobs": 21},
    {"logprob_token_ids": [5]},
    {"logprob_token_ids": [5], "best_of": 2},
    {"response_format": {"type": "xml"}},
    {"response_format": {"type": "text", "x": 1}},
    {"response_format": {"type": "json_schema"}},
    {"response_format": {"type": "json_object", "json_schema": {"name": "a", "schema": {}}}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": []}}}},
    {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
    {"structured_outputs": {"regex": None}},
    {"structured_outputs": {"regex": "a", "choice": ["b"]}},
    {"structured_outputs": {"json": {}, "regex": "a", "choice": ["b"], "grammar": "c"}},
    {"structured_outputs": {"regex": ""}},
    {"structured_outputs": {"regex": 5}},
    {"structured_outputs": {"regex": "("}},
    {"structured_outputs": {"choice": []}},
    {"structured_outputs": {"choice": ["a"] * 1001}},
    {"structured_outputs": {"choice": ["a", ""]}},
    {"structured_outputs": {"choice": "a"}},
    {"structured_outputs": {"choice": [1]}},
    {"structured_outputs": {"grammar": ""}},
    {"structured_outputs": {"grammar": "start: x"}},
    {"structured_outputs": {"grammar": "start: <tool>"}},
    {"structured_outputs": {"grammar": "%llguidance {}\nstart: /a/"}},
    {"structured_outputs": {"json": 5}},
    {"structured_outputs": {"json": "{"}},
    {"structured_outputs": {"json": "5"}},
    {"structured_outputs": {"json": False}},
    {"structured_outputs": {"json": {"not": {}}}},
    {"structured_outputs": {"json": {"minimum": 2**60}}},
    {"structured_outputs": {"json": {"allOf": [{"pattern": "a"}] * 40}}},
)
BAD_COMPLETIONS: tuple[dict[str, Any], ...] = (
    {"prompt": ["a", ""]},
    {"prompt": [[1], []]},
    {"prompt": [1, "a"]},
    {"prompt": [True]},
    {"prompt": [[1], [1.5]]},
    {"prompt": ["a"] * 65},
    {"prompt": [260]},
    {"prompt": [97, -1]},
    {"prompt": [2**70]},
    {"prompt": "x" * 512},
    {"prompt": ["ok", "x" * 513]},
    {"prompt": "x" * 2048},
    {"prompt": "x" * 500, "max_tokens": 13},
    {"logprobs": 21},
    {"logprobs": 0, "logprob_token_ids": [260]},
    {"logprobs": 0, "logprob_token_ids": [1] * 65},
    {"logprobs": 0, "logprob_token_ids": ["5"]},
    {"structured_outputs": {"grammar": "start: " + "|" * 2001}},
    {"structured_outputs": {"grammar": "start: a" + "+" * 1001}},
    {"structured_outputs": {"grammar": "start: /a/" + "&/a/" * 9}},
    {"structured_outputs": {"grammar": "a::=b\n" * 501}},
)
BAD_CHAT: tuple[dict[str, Any], ...] = (
    {"messages": [5]},
    {"messages": [{"role": "user"}]},
    {"messages": [{"content": "x"}]},
    {"messages": [{"role": "king", "content": "x"}]},
    {"messages": [{"role": "user", "content": None}]},
    {"messages": [{"role": "user", "content": "x", "name": 5}]},
    {"messages": [{"role": "user", "content": "x", "tool_calls": []}]},
    {"messages": [{"role": "user", "content": "x"}, {"role": "user", "content": 5}]},
    {"messages": [{"role": "user", "content": ["x"]}]},
    {"messages": [{"role": "user", "content": [{"text": "x"}]}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
    {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "more": 1}]}]},
    {"messages": [{"role": "user", "content": "x" * 513}]},
    {"messages": [{"role": "user", "content": "x" * 2048}]},
    {"max_completion_tokens": 600},
    {"max_completion_tokens": 0, "max_tokens": 5},
    {"logprobs": 5},
    {"top_logprobs": 5},
    {"top_logprobs": 5, "logprobs": False},
    {"top_logprobs": 21, "logprobs": True},
    {"top_logprobs": -1, "logprobs": True},
    {"top_logprobs": True, "logprobs": True},
    {"logprobs": True, "logprob_token_ids": [1] * 65},
)

NO_JSON = (
    "", "{", '{"prompt": "a"} x', '{"prompt": NaN}', '{"prompt": "\\ud800"}', '{"prompt": "a", "temperature": 1e400}',
    "{'prompt': 'a'}", '{"prompt": "a",}', "[" * 1025, "null", "5", "[]", '"text"', "true",
    '{"prompt": "a", "prompt": "b"}',
)  # fmt: skip
DEEP = ("[" * 260 + "]" * 260, '{"a":' * 260 + "1" + "}" * 260)  # deeper than orjson writes

ROUTES = ("/", "/static/index.html", COMPLETIONS, CHAT, "/v1/stream", "/v1/models", "/v1/models/fake", "/version",
          "/liveness", "/readiness", "/health", "/metrics")  # fmt: skip
ASKED = ROUTES[5:]


def make_cases() -> Iterator[Case]:
    """Every case, without its answers. Names are unique."""
    yield from _good_cases()
    yield from _probes()
    yield from _refusals()
    yield from _structured_cases()
    yield from _body_cases()
    yield from _route_cases()
    yield from _state_cases()
    yield from _failure_cases()
    yield from _socket_cases()


def _case(name: str, *exchanges: Exchange, base: Mapping[str, Any] | None = None, **setup: Any) -> Case:
    """
    Args:
        base: what every JSON body of the exchanges has beside its own keys.
    """
    case: Case = {"name": name}
    if setup:
        case["setup"] = setup
    if base is not None:
        case["base"] = dict(base)
    paths = {exchange.get("path") for exchange in exchanges if "script" not in exchange}
    if len(paths) == 1 and len(exchanges) > 1:
        (case["path"],) = paths
        exchanges = tuple({key: exchange[key] for key in exchange if key != "path"} for exchange in exchanges)
    case["exchanges"] = list(exchanges)
    return case


def _post(path: str, body: Mapping[str, Any], **more: Any) -> Exchange:
    return {"path": path, "json": dict(body), **more}


def _get(path: str, **more: Any) -> Exchange:
    return {"method": "GET", "path": path, **more}


def _good_cases() -> Iterator[Case]:
    """Each as JSON, as a stream, and over a WebSocket."""
    for path, start, kinds in (
        (COMPLETIONS, PROMPT, {**GOOD, **GOOD_COMPLETIONS}),
        (CHAT, MESSAGES, {**GOOD, **GOOD_CHAT}),
    ):
        for number, (name, given) in enumerate(kinds.items()):
            body = {**start, **given}
            streamed = {"stream": True}
            exchanges = [] if given.get("stream_options") else [_post(path, {})]
            exchanges.append(_post(path, streamed))
            if (path == CHAT) == number % 2:
                exchanges.append({"script": [_generate("a", streamed), {"until": "a"}]})
            yield _case(f"{path}: {name}", *exchanges, base=body)
    yield _case("cached tokens", _post(COMPLETIONS, PROMPT), _post(CHAT, MESSAGES), num_cached_tokens=2)
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    yield _case("cached tokens in a stream", _post(COMPLETIONS, {**PROMPT, **usage}), num_cached_tokens=2)


def _probes() -> Iterator[Case]:
    """Every parameter with every kind of value: completions over HTTP, chat over a WebSocket."""
    shortest = {"prompt": "a", "max_tokens": 1}
    for name in (*SHARED_PARAMETERS, *COMPLETION_PARAMETERS):
        posts = (_post(COMPLETIONS, {name: probe}) for probe in PROBES)
        yield _case(f"{COMPLETIONS}: every kind of {name}", *posts, base=shortest)
    shortest = {**MESSAGES, "max_tokens": 1}
    for name in CHAT_PARAMETERS:
        posts = (_post(CHAT, {name: probe}) for probe in PROBES)
        yield _case(f"{CHAT}: every kind of {name}", *posts, base=shortest)
    for name in SHARED_PARAMETERS:
        frames = (_generate("a", {name: probe}) for probe in PROBES[::3])
        script = [action for frame in frames for action in (frame, {"until": "a"})]
        yield _case(f"a WebSocket's chat: some kinds of {name}", {"script": script}, base=shortest)


def _refusals() -> Iterator[Case]:
    for path, base, bodies in (
        (COMPLETIONS, PROMPT, (*BAD, *BAD_COMPLETIONS)),
        (CHAT, MESSAGES, (*BAD[::3], *BAD_CHAT)),
    ):
        for number, given in enumerate(bodies):
            exchanges = [_post(path, given)]
            if number % 4 == 0 and "stream" not in given:
                exchanges.append({"script": [_generate("a", given), {"until": "a"}]})
            yield _case(f"{path}: refused {number}, {json.dumps(given)[:60]}", *exchanges, base=base)


def _structured_cases() -> Iterator[Case]:
    for number, (wish, says) in enumerate(WISHES):
        body = {**PROMPT, "max_tokens": 60, **wish}
        chat = {**MESSAGES, **wish}
        yield _case(
            f"structured {number}",
            _post(COMPLETIONS, body),
            _post(COMPLETIONS, {**body, "stream": True}),
            _post(CHAT, {**chat, "n": 2}),
            {"script": [_generate("a", body), {"until": "a"}]},
            says=says,
        )
    wish = {"structured_outputs": {"regex": "a" * 9}}
    yield _case("a grammar over the limit", _post(COMPLETIONS, {**PROMPT, **wish}), settings={"max_grammar_bytes": 8})
    yield _case("an answer cut short", _post(CHAT, {**MESSAGES, **WISHES[1][0], "max_tokens": 3}), says='{"a": 12}')


def _body_cases() -> Iterator[Case]:
    for path in (COMPLETIONS, CHAT):
        yield _case(f"{path}: what is no JSON object", *({"path": path, "text": text} for text in NO_JSON))
        yield _case(f"{path}: no UTF-8", {"path": path, "base64": base64.b64encode(b"\xff\xfe").decode()})
        large = "x" * 1100
        yield _case(
            f"{path}: a body over the limit",
            _post(path, {"prompt": large}),
            _post(path, {"prompt": large}, gzip=True, headers={"Content-Encoding": "gzip"}),
            _post(path, {**PROMPT, **MESSAGES}),
            settings={"max_body_bytes": 1024},
        )
    deep = [f'{{"model": null, "{name}": {nested}}}' for name in ("stop", "x") for nested in DEEP]
    yield _case("values nested deeply", *({"path": COMPLETIONS, "text": text} for text in (*deep, *DEEP)))
    gzipped = {"Content-Encoding": "gzip"}
    yield _case(
        "encodings and types of a body",
        _post(COMPLETIONS, PROMPT, gzip=True, headers=gzipped),
        _post(COMPLETIONS, PROMPT, headers={"Content-Type": "text/plain; charset=latin-1"}),
        _post(COMPLETIONS, PROMPT, headers={"Content-Type": "application/x-www-form-urlencoded"}),
        {"path": COMPLETIONS},
    )
    yield _case("a body that is not encoded as it says", {"path": COMPLETIONS, "text": "no gzip", "headers": gzipped})
    for name in ("my-id", "a b", "x" * 128, "x" * 129, "é"):
        headers = {"X-Request-Id": name}
        yield _case(
            f"X-Request-Id: {name[:20]}, {len(name)} characters",
            _post(COMPLETIONS, PROMPT, headers=headers),
            _post(CHAT, {**MESSAGES, "stream": True, "max_tokens": 2}, headers=headers),
            _post(COMPLETIONS, {**PROMPT, "request_id": "of-the-body"}, headers=headers),
            _get("/v1/nothing", headers=headers),
        )


def _route_cases() -> Iterator[Case]:
    for path in ROUTES:
        others = ("DELETE", "PUT", "PATCH", "OPTIONS", "HEAD", "GET" if path in (COMPLETIONS, CHAT) else "POST")
        yield _case(f"{path}: methods", *({"method": method, "path": path} for method in others))
    for path in ASKED:
        yield _case(f"GET {path}", _get(path))
    yield _case("GET /v1/stream without an upgrade", _get("/v1/stream"))
    yield _case("the page", *(_get(path, shows="type") for path in ("/", "/static/index.html", "/static/favicon.svg")))
    yield _case("the page that is known", _get("/", headers={"If-None-Match": "*"}))
    yield _case(
        "what is not there",
        *(
            _get(path)
            for path in (
                "/v1", "/v1/nothing", "/v1/completions/", "/static/", "/static/nothing.js", "/static/__init__.py",
                "/static/package.json", "/static/%2e%2e/pyproject.toml", "/v1/models/", "/v1/models/org/other",
                "/nothing?x=1", "/é", "/" + "x" * 200,
            )
        ),
        {"path": "/v1/nothing", "json": PROMPT},
    )  # fmt: skip
    named = {"served_model_name": "org/mine"}
    yield _case(
        "a name of the user's own",
        _get("/v1/models"),
        _get("/v1/models/org/mine"),
        _get("/v1/models/fake"),
        _post(COMPLETIONS, {**PROMPT, "model": "org/mine"}),
        _post(COMPLETIONS, {**PROMPT, "model": "fake"}),
        _post(CHAT, {**MESSAGES, "model": "org/mine", "stream": True}),
        {"script": [_generate("a", {**PROMPT, "model": "org/mine"}), {"until": "a"}]},
        settings=named,
    )


def _state_cases() -> Iterator[Case]:
    for state in ("loading", "draining", "failed", "dead"):
        yield _case(
            f"while {state}",
            *(_get(path) for path in ASKED),
            _get("/", shows="type"),
            _post(COMPLETIONS, PROMPT),
            _post(COMPLETIONS, {**PROMPT, "stream": True}),
            _post(COMPLETIONS, {}),
            {"path": COMPLETIONS, "text": "{"},
            _post(CHAT, MESSAGES),
            _post(CHAT, {**MESSAGES, "stream": True, "model": "other"}),
            {"script": [_generate("a", PROMPT), {"until": "a"}, _generate("b", {}), {"until": "b"}]},
            state=state,
        )
    yield _case("loading under a name", _get("/v1/models"), state="loading", settings={"served_model_name": "mine"})
    two = {"n": 2}
    yield _case(
        "a full queue",
        _post(COMPLETIONS, {**PROMPT, **two}),
        _post(COMPLETIONS, {**PROMPT, **two, "stream": True}),
        _post(CHAT, {**MESSAGES, **two}),
        {"script": [_generate("a", {**PROMPT, **two}), {"until": "a"}]},
        _post(COMPLETIONS, PROMPT),
        engine={"max_num_queued": 1},
    )
    yield _case("no chat template", _post(CHAT, MESSAGES), _post(COMPLETIONS, PROMPT), chat_template=None)
    refusing = "{{ raise_exception('only one message, please') }}"
    failing = "{{ messages[0].nothing.at_all }}"
    yield _case("a chat template that refuses", _post(CHAT, MESSAGES), chat_template=refusing)
    yield _case("a chat template that fails", _post(CHAT, MESSAGES), chat_template=failing)
    yield _case("a chat template that is empty", _post(CHAT, MESSAGES), chat_template="")


def _failure_cases() -> Iterator[Case]:
    """What happens to requests that run: at once, and after three tokens."""
    for kind in ("fail", "drain", "time out", "abort", "error", "error without words"):
        for steps in (0, 3):
            happening = {"steps": steps, "do": kind}
            given = {"return_token_ids": True, "max_tokens": 9, "stream_options": {"include_usage": True}}
            plain = {"n": 2, "max_tokens": 9}
            for name, exchange in (
                ("JSON", _post(COMPLETIONS, {**PROMPT, **plain})),
                ("a stream", _post(COMPLETIONS, {**PROMPT, **given, "stream": True})),
                ("a stream of two", _post(COMPLETIONS, {**PROMPT, **plain, "stream": True})),
                ("chat", _post(CHAT, {**MESSAGES, **plain})),
                ("a chat's stream", _post(CHAT, {**MESSAGES, **given, "stream": True})),
                ("a WebSocket", {"script": [_generate("a", {**PROMPT, **plain}), {"until": "a"}]}),
            ):
                after = "at once" if steps == 0 else f"after {steps} steps"
                yield _case(f"{kind} {after}: {name}", exchange, after=happening)
    yield _case(
        "an error that nobody foresaw",
        _post(COMPLETIONS, PROMPT),
        _post(CHAT, {**MESSAGES, "stream": True}),
        {"script": [_generate("a", PROMPT), {"until": "a"}]},
        crashes=True,
    )


def _generate(client_id: str, body: Mapping[str, Any]) -> dict[str, Any]:
    return {"send": {"type": "generate", "id": client_id, **body}}


BAD_FRAMES: tuple[tuple[Any, Any], ...] = (  # what is sent, and the id that the answer names
    ("{", None),
    ("", None),
    ("[1]", None),
    ("null", None),
    ({"type": "generate", "prompt": "x"}, None),
    ({"type": "generate", "id": 5, "prompt": "x"}, None),
    ({"type": "generate", "id": "", "prompt": "x"}, None),
    ({"type": "generate", "id": "x" * 129, "prompt": "x"}, None),
    ({"id": "a"}, "a"),
    ({"id": "a", "type": None}, "a"),
    ({"id": "a", "type": "dance"}, "a"),
    ({"id": "a", "type": "cancel"}, "a"),
    ({"id": "a", "type": "cancel", "x": 1}, "a"),
    ({"id": "a", "type": "generate"}, "a"),
    ({"id": "a", "type": "generate", "prompt": ""}, "a"),
    ({"id": "a", "type": "generate", "prompt": "x" * 513}, "a"),
    ({"id": "a", "type": "generate", "prompt": [999]}, "a"),
    ({"id": "a", "type": "generate", "prompt": "x", "foo": 1}, "a"),
    ({"id": "a", "type": "generate", "prompt": "x", "top_p": 2}, "a"),
    ({"id": "a", "type": "generate", "prompt": "x", "model": "y"}, "a"),
    ({"id": "a", "type": "generate", "prompt": "x", "stream": False}, "a"),
    ({"id": "a", "type": "generate", "prompt": "x", "stream": None}, "a"),
    ({"id": "a", "type": "generate", "prompt": "x", "messages": []}, "a"),
    ({"id": "a", "type": "generate", "messages": []}, "a"),
    ({"id": "a", "type": "generate", "messages": [], "echo": True}, "a"),
    ({"id": "a", "type": "generate", "prompt": "x", "best_of": 2}, "a"),
    ("x" * 1500, None),
    ("é" * 2001, None),
    (DEEP[0], None),
    ('{"id":' + DEEP[0] + "}", None),
    ('{"id":"a","type":' + DEEP[0] + "}", "a"),
    ('{"id":"a","type":"generate","prompt":"a","x":' + DEEP[1] + "}", "a"),
)


def _socket_cases() -> Iterator[Case]:
    for number, (frame, client_id) in enumerate(BAD_FRAMES):
        script = [{"send": frame}, {"until": client_id}, _generate("b", PROMPT), {"until": "b"}]
        yield _case(f"a bad frame {number}", {"script": script}, settings={"max_body_bytes": 4000})
    binary = {"send_binary": base64.b64encode(b'{"id":"a"}').decode()}
    yield _case("a binary frame", {"script": [binary, {"until": None}, _generate("a", PROMPT), {"until": "a"}]})
    far = [{"send": "x" * 5000}, {"read": 1}]
    yield _case("a frame far over the limit", {"script": far}, settings={"max_body_bytes": 1024})
    several = [_generate(f"g{number}", {"prompt": f"story {number}", "n": 1 + number % 3}) for number in range(5)]
    yield _case("several at once", {"script": [*several, *({"until": f"g{number}"} for number in range(5))]})
    kinds = [
        _generate("é 🌊", {"prompt": "ab", "logprobs": 1, "return_token_ids": True}),
        _generate('"', {**MESSAGES, "logprobs": True, "top_logprobs": 2}),
        _generate("x" * 128, {"prompt": ["ab", [99]], "prompt_logprobs": 1}),
        _generate("s", {"prompt": "abcabc", "stop": "ca", "stream": True, "request_id": "mine"}),
    ]
    ends = [{"until": name} for name in ("é 🌊", '"', "x" * 128, "s")]
    yield _case("several of different kinds", {"script": [*kinds, *ends]})
    again = [_generate("a", PROMPT), {"until": "a"}]
    yield _case("an id used again", {"script": [*again, *again]})
    yield _case(
        "an id that runs already",
        {"script": [_generate("a", PROMPT), {"wait_running": 1}, _generate("a", MESSAGES), {"until": "a"},
                    {"step": 9}, {"until": "a"}]},
        is_manual=True,
    )  # fmt: skip
    cancel = {"send": {"type": "cancel", "id": "a"}}
    yield _case("a cancel at once", {"script": [_generate("a", PROMPT), cancel, {"until": "a"}]}, is_manual=True)
    yield _case(
        "a cancel between tokens",
        {"script": [_generate("a", PROMPT), _generate("b", {**PROMPT, "n": 2}), {"wait_running": 3}, {"step": 2},
                    cancel, {"until": "a"}, {"step": 9}, {"until": "b"}, cancel, {"until": "a"}]},
        is_manual=True,
    )  # fmt: skip
    yield _case(
        "a failure under several",
        {"script": [_generate("a", PROMPT), _generate("b", MESSAGES), {"wait_running": 2}, {"step": 2},
                    {"fail": "the device is gone"}, {"until": "a"}, {"until": "b"}, _generate("c", PROMPT),
                    {"until": "c"}]},
        is_manual=True,
    )  # fmt: skip
    many = [_generate(str(number), {}) for number in range(257)]
    yield _case(
        "too many at once",
        {
            "script": [*many, {"until": "256"}, {"step": 2}, {"until": "0"}, {"until": "255"}],
            "shows": ["0", "255", "256"],
        },
        base={"prompt": "x"},
        is_manual=True,
    )
    hello = [_generate("a", {"prompt": "x"}), {"until": "a"}]
    origins = ("<server>", "https://friend.example", "https://evil.example", "null", "http://127.0.0.1:1", "http://[")
    yield _case(
        "origins",
        {"script": hello},
        *({"script": hello, "headers": {"Origin": origin}} for origin in origins),
        *(_get("/v1/stream", headers={"Origin": origin}) for origin in origins[2:]),
        settings={"allowed_origins": ["https://friend.example"]},
    )


async def record() -> None:
    """Plays every case and writes it with its answers."""
    lines = []
    for case in make_cases():
        async with server_starter() as start_server:
            try:
                answers = await play(case, start_server)
            except BaseException as error:
                error.add_note(f"in the case {case['name']}")
                raise
        lines.append(json.dumps({**case, "answers": answers}, ensure_ascii=False, separators=(",", ":")))
    OUTPUT.write_text("\n".join(lines) + "\n", "utf-8")
    print(f"{len(lines)} cases, {OUTPUT.stat().st_size} bytes")


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())  # no events on the terminal
    asyncio.run(record())
