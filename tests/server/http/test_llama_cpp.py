"""llama.cpp's API: its names of parameters, its answers and errors, over the same completions."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.interface.types import Pooling, TokenLogprobs
from server.api.llama_cpp.drawn_probabilities import DrawnProbabilities
from server.generation.output_sequence import Delta
from server.http.pooling import embedding
from server.text.infill import Infill
from tests.fakes.engine_client import FakeEngineClient, logprob_of
from tests.fakes.text_model import EOS, FakeTextModel, FakeTokenizer
from tests.server.conftest import RunningServer, StartServer
from tests.server.support.sse_reader import chunks_of


def saying(text: str) -> Callable[..., list[int]]:
    return lambda *_: list(text.encode())


async def chunks(server: RunningServer, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    text = (await server.stream_bytes(path, body)).decode()
    events = [event for event in text.split("\n\n") if event.startswith("data: ")]
    return [json.loads(event.removeprefix("data: ")) for event in events]


@pytest.mark.parametrize("path", ["/completion", "/completions"])
async def test_a_whole_completion(server: RunningServer, path: str) -> None:
    status, answer = await server.post(path, {"prompt": "abcd", "n_predict": 3, "return_tokens": True})
    assert status == 200
    assert (answer["content"], answer["tokens"], answer["stop"]) == ("abc", [*b"abc"], True)
    assert (answer["stop_type"], answer["tokens_predicted"], answer["tokens_evaluated"]) == ("limit", 3, 4)
    assert answer["timings"].keys() >= {"prompt_n", "prompt_ms", "predicted_n", "predicted_per_second", "cache_n"}


async def test_a_stream_ends_with_the_chunk_that_stops(server: RunningServer) -> None:
    *pieces, last = await chunks(server, "/completion", {"prompt": "abc"})
    assert "".join(piece["content"] for piece in pieces) == "abc"
    assert {piece["stop"] for piece in pieces} == {False}
    assert (last["stop"], last["content"], last["stop_type"]) == (True, "", "eos")
    assert last["tokens_predicted"] == len(b"abc") + 1


async def test_several_prompts_have_a_list(server: RunningServer) -> None:
    _, answers = await server.post("/completion", {"prompt": ["ab", "cd"]})
    assert [answer["content"] for answer in answers] == ["ab", "cd"]
    last = [chunk for chunk in await chunks(server, "/completion", {"prompt": ["ab", "cd"]}) if chunk["stop"]]
    assert [chunk["index"] for chunk in last] == [0, 1]


async def test_what_would_change_the_answer_is_ignored_with_a_warning(server: RunningServer) -> None:
    body = {
        "prompt": "ab", "n_predict": 2, "repeat_last_n": 3, "t_max_predict_ms": 50, "min_keep": 0, "n_indent": 4,
        "samplers": ["top_k"], "input_extra": [],
    }  # fmt: skip
    async with server.http.post(server.url + "/completion", json=body) as response:
        assert response.status == 200
        ignored = response.headers["X-Eagre-Ignored"].split(", ")
    assert set(ignored) == {"repeat_last_n", "t_max_predict_ms", "n_indent", "samplers"}


async def test_parameters_by_their_names(server: RunningServer) -> None:
    body = {
        "prompt": "ab", "n_predict": 5, "repeat_penalty": 1.2, "temperature": 0.4, "typical_p": 0.9, "seed": 4,
        "dry_multiplier": 0.5, "logit_bias": [[97, -2.5], [98, False]], "mirostat": 0, "cache_prompt": True,
        "id_slot": 3, "n_keep": 2, "top_n_sigma": -1, "dynatemp_range": 0.0, "stop": ["x"],
    }  # fmt: skip
    async with server.http.post(server.url + "/completion", json={**body, "samplers": ["top_k"]}) as response:
        assert (response.status, response.headers["X-Eagre-Ignored"]) == (200, "samplers")
    params = server.engine.submitted[-1].params
    assert (params.max_tokens, params.repetition_penalty, params.temperature, params.seed) == (5, 1.2, 0.4, 4)
    assert (params.typical_p, params.dry_multiplier, dict(params.logit_bias)) == (0.9, 0.5, {97: -2.5, 98: -100})


async def test_length_and_seed_may_be_open(server: RunningServer) -> None:
    status, _ = await server.post("/completion", {"prompt": "ab", "n_predict": -1, "seed": -1})
    assert status == 200
    assert server.engine.submitted[-1].params.max_tokens > 16


async def test_probabilities_have_ids(server: RunningServer) -> None:
    _, answer = await server.post("/completion", {"prompt": "ab", "n_probs": 2, "n_predict": 1})
    (entry,) = answer["completion_probabilities"]
    assert (entry["id"], entry["token"], len(entry["top_logprobs"])) == (97, "a", 2)


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_the_probabilities_of_the_draw(server: RunningServer, is_streamed: bool) -> None:
    body = {"prompt": "ab", "n_probs": 2, "n_predict": 1, "post_sampling_probs": True}
    if is_streamed:
        answer, last = await chunks(server, "/completion", body)
    else:
        _, answer = await server.post("/completion", body)
        last = answer
    (entry,) = answer["completion_probabilities"]
    drawn = server.engine.submitted[-1].params
    assert (drawn.logprobs, drawn.drawn_logprobs) == (2, True)
    assert (entry["id"], entry["token"], entry["bytes"], len(entry["top_probs"])) == (97, "a", [97], 2)
    assert entry["prob"] == pytest.approx(math.exp(logprob_of(97)))
    assert last["generation_settings"]["post_sampling_probs"] is True
    await server.post("/completion", {**body, "n_probs": 0})
    assert not server.engine.submitted[-1].params.drawn_logprobs


async def test_what_could_not_be_drawn_is_not_among_the_probabilities() -> None:
    kind = DrawnProbabilities(FakeTokenizer(), [[]], 1, (), of_answers=True)
    piece = Delta(0, "a", [97], None, [TokenLogprobs(0.0, 1, [(97, 0.0), (98, -math.inf)], [])])
    shape = kind.shape(piece)
    assert shape is not None
    (entry,) = shape["content"]
    assert (entry["prob"], [each["id"] for each in entry["top_probs"]]) == (1.0, [97])


async def test_a_stop_string_is_named(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(respond=saying("one two three")))
    _, answer = await server.post("/completion", {"prompt": "x", "stop": [" two"]})
    assert (answer["content"], answer["stop_type"], answer["stopping_word"]) == ("one", "word", " two")


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/completion", {}, 400, "prompt"),
        ("/completion", {"prompt": "a", "mirostat": 2}, 400, "mirostat"),
        ("/completion", {"prompt": "a", "logit_bias": [7]}, 400, "logit_bias"),
        ("/completion", {"prompt": "a", "n_predict": "x"}, 400, "max_tokens"),
        ("/completion", {"prompt": "a", "temprature": 1}, 400, "temprature"),
        ("/completion", {"prompt": "a", "model": "none"}, 404, "model"),
        ("/embedding", {}, 400, "content"),
        ("/apply-template", {"messages": 7}, 400, "messages"),
        ("/infill", {"input_prefix": "a", "input_suffix": "b"}, 400, "suffix"),  # a model without such tokens
    ],
)
async def test_errors_have_the_status_as_code(
    server: RunningServer, path: str, body: dict[str, Any], status: int, param: str
) -> None:
    got, answer = await server.post(path, body)
    assert (got, answer["error"]["code"], answer["error"]["param"]) == (status, status, param)


async def test_tokens_and_their_pieces(server: RunningServer) -> None:
    assert await server.post("/tokenize", {"content": "ab"}) == (200, {"tokens": [97, 98]})
    _, answer = await server.post("/tokenize", {"content": "ab", "with_pieces": True})
    assert answer["tokens"] == [{"id": 97, "piece": "a"}, {"id": 98, "piece": "b"}]
    _, answer = await server.post("/detokenize", {"tokens": [97, 98]})
    assert answer["content"] == answer["prompt"] == "ab"


async def test_the_text_of_a_template(server: RunningServer) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    _, rendered = await server.post("/v1/chat/completions/render", {"messages": messages})
    status, answer = await server.post("/apply-template", {"messages": messages})
    assert (status, [*answer["prompt"].encode()]) == (200, rendered["token_ids"])


class TokenEngine(FakeEngineClient):
    """The embedding of a token is that token, and where it stands."""

    def __init__(self) -> None:
        super().__init__()
        self.model_info = replace(self.model_info, embedding_size=2)
        self.num_texts = 0  # that it was asked for

    async def embed(self, prompt_token_ids: Any, pooling: Pooling, **options: Any) -> np.ndarray:
        assert pooling is Pooling.NONE
        self.num_texts += 1
        return np.array([[token, place] for place, token in enumerate(prompt_token_ids)], np.float32)


@pytest.mark.parametrize("path", ["/embedding", "/embeddings"])
async def test_without_pooling_each_token_has_an_embedding(start_server: StartServer, path: str) -> None:
    server = await start_server(TokenEngine(), pooling="none")
    status, answer = await server.post(path, {"content": ["ab", "c"]})
    assert status == 200
    assert answer == [{"index": 0, "embedding": [[97, 0], [98, 1]]}, {"index": 1, "embedding": [[99, 0]]}]
    status, refused = await server.post("/v1/embeddings", {"input": "ab"})
    assert (status, refused["error"]["code"]) == (400, "no_pooling")


async def test_the_embeddings_of_tokens_are_bounded(start_server: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is computed."""
    engine = TokenEngine()
    server = await start_server(engine, pooling="none")
    monkeypatch.setattr(embedding, "MAX_TOKENS_EMBEDDED", 3)
    for content, status in ((["ab", "c"], 200), (["ab", "cd"], 400)):
        assert (await server.post("/embedding", {"content": content}))[0] == status
    assert engine.num_texts == 2
    monkeypatch.setattr(embedding, "MAX_NUMBERS", 5)
    status, refused = await server.post("/embedding", {"content": ["ab", "c"]})
    assert (status, refused["error"]["message"]) == (
        400, "input has 6 numbers in the embeddings of its tokens; one request may have 5"
    )  # fmt: skip
    assert engine.num_texts == 2


async def test_the_pooling_of_the_settings_holds_where_a_request_says_nothing(start_server: StartServer) -> None:
    server = await start_server(pooling="mean")
    _, told = await server.post("/v1/embeddings", {"input": "ab"})
    _, named = await server.post("/v1/embeddings", {"input": "ab", "pooling": "mean"})
    _, other = await server.post("/v1/embeddings", {"input": "ab", "pooling": "last"})
    assert told["data"] == named["data"] != other["data"]


async def test_embeddings_are_those_of_the_other_route(server: RunningServer) -> None:
    _, known = await server.post("/v1/embeddings", {"input": ["ab", "cd"]})
    _, answer = await server.post("/embedding", {"content": ["ab", "cd"]})
    assert [entry["embedding"] for entry in answer] == [[entry["embedding"]] for entry in known["data"]]


async def test_properties_slots_and_models(server: RunningServer) -> None:
    _, props = await server.get("/props")
    _, slots = await server.get("/slots")
    assert props["total_slots"] == len(slots)
    assert props["default_generation_settings"]["n_ctx"] == slots[0]["n_ctx"] > 0
    assert "/" not in props["model_path"]
    assert await server.get("/lora-adapters") == (200, [])
    assert await server.get("/models") == await server.get("/v1/models")
    assert await server.post("/models/load", {"model": "fake"}) == (200, {"success": True})
    status, _ = await server.post("/models/load", {"model": "none"})
    assert status == 404


async def test_pieces_of_other_files_come_before_the_gap(start_server: StartServer) -> None:
    text_model = FakeTextModel()
    text_model.infill = Infill(256, 258, 259)
    server = await start_server(text_model=text_model)
    extra = [{"filename": "a.py", "text": "x=1"}, {"text": "y"}]
    body = {"input_prefix": "a", "input_suffix": "b", "prompt": "c", "input_extra": extra}
    assert (await server.post("/infill", body))[0] == 200
    before = "\n\n--- snippet ---\n\nx=1\n\n--- snippet ---\n\ny"
    assert server.engine.submitted[-1].prompt_token_ids == [*before.encode(), 256, *b"ac", 258, *b"b", 259]
    status, answer = await server.post("/infill", {**body, "input_extra": [{"filename": "a.py"}]})
    assert (status, answer["error"]["param"]) == (400, "input_extra[0].text")


async def test_a_prompt_has_texts_and_token_ids(server: RunningServer) -> None:
    for prompt, tokens in [
        ({"prompt_string": "ab"}, b"ab"),
        ([97, "bc", {"prompt_string": "d"}, 101], b"abcde"),
        ([97, 98], b"ab"),
    ]:
        assert (await server.post("/completion", {"prompt": prompt}))[0] == 200
        assert bytes(server.engine.submitted[-1].prompt_token_ids) == tokens
    _, answers = await server.post("/completion", {"prompt": [[97, "b"], "cd", {"prompt_string": "ef"}]})
    assert [answer["content"] for answer in answers] == ["ab", "cd", "ef"]


@pytest.mark.parametrize(
    "prompt",
    [
        [], "", [[]], {}, {"prompt_string": 7}, [7, True], [[7, None]], 7, [97, ["b"]],
        {"prompt_string": "a", "multimodal_data": ["AAAA"]}, ["a"] * 65, [97, *["a"] * 1025],
    ],
)  # fmt: skip
async def test_other_prompts_are_refused(server: RunningServer, prompt: Any) -> None:
    status, answer = await server.post("/completion", {"prompt": prompt})
    assert (status, answer["error"]["param"]) == (400, "prompt")


async def test_a_bias_may_name_a_text(server: RunningServer) -> None:
    for biases in ([["ab", -3], [99, 2], ["d", False]], {"ab": -3, "99": 2, "d": False}):
        assert (await server.post("/completion", {"prompt": "x", "logit_bias": biases}))[0] == 200
        assert dict(server.engine.submitted[-1].params.logit_bias) == {97: -3, 98: -3, 99: 2, 100: -100}


@pytest.mark.parametrize(
    "biases",
    [
        [["ab", "c"]], [["", 1]], [["a" * 257, 1]], [[1.5, 2]], [[True, 2]], [["a", True]], [["ab", 200]],
        [["a", 1]] * 1025,
    ],
)  # fmt: skip
async def test_other_biases_are_refused(server: RunningServer, biases: Any) -> None:
    status, answer = await server.post("/completion", {"prompt": "x", "logit_bias": biases})
    assert (status, answer["error"]["param"]) == (400, "logit_bias")


async def test_an_answer_has_the_fields_that_are_named(server: RunningServer) -> None:
    names = ["content", "generation_settings/n_predict", "prompt", "timings/predicted_n", "none", "content/x"]
    _, answer = await server.post("/completion", {"prompt": "abcd", "n_predict": 2, "response_fields": names})
    assert answer == {"content": "ab", "generation_settings/n_predict": 2, "prompt": "abcd", "timings/predicted_n": 2}
    status, answer = await server.post("/completion", {"prompt": "a", "response_fields": ["content"] * 65})
    assert (status, answer["error"]["param"]) == (400, "response_fields")


async def test_no_tokens_warm_the_cache_alone(server: RunningServer) -> None:
    status, answer = await server.post("/completion", {"prompt": "abcd", "n_predict": 0})
    assert (status, answer["content"], answer["tokens_predicted"], answer["stop_type"]) == (200, "", 0, "limit")
    assert (answer["tokens_evaluated"], answer["generation_settings"]["n_predict"]) == (4, 0)
    (last,) = await chunks(server, "/completion", {"prompt": "abcd", "n_predict": 0, "stream": True})
    assert (last["stop"], last["content"], last["timings"]["predicted_n"]) == (True, "", 0)


async def test_several_answers_to_one_prompt(server: RunningServer) -> None:
    _, answers = await server.post("/completion", {"prompt": "ab", "n_cmpl": 3, "n_probs": 1})
    assert [(answer["content"], answer["tokens_evaluated"]) for answer in answers] == [("ab", 2)] * 3
    pieces = await chunks(server, "/completion", {"prompt": ["ab", "c"], "n": 2})
    assert [piece["index"] for piece in pieces if piece["stop"]] == [0, 1, 2, 3]


async def test_settings_have_llama_cpps_names(server: RunningServer) -> None:
    _, answer = await server.post("/completion", {"prompt": "a", "seed": 5, "repeat_penalty": 1.1, "stop": "x"})
    settings = answer["generation_settings"]
    assert (settings["seed"], settings["repeat_penalty"], settings["n_predict"], settings["stop"]) == (
        5,
        1.1,
        -1,
        ["x"],
    )
    _, props = await server.get("/props")
    known = props["default_generation_settings"]["params"]
    assert known.keys() | {"logit_bias"} == settings.keys()


async def test_an_end_that_is_ignored_is_a_bias_of_minus_infinity(server: RunningServer) -> None:
    body = {"prompt": "a", "n_predict": 1, "logit_bias": [[97, 1]]}
    _, answer = await server.post("/completion", {**body, "ignore_eos": True})
    assert answer["generation_settings"]["logit_bias"] == [{"token": 97, "bias": 1}, {"token": EOS, "bias": None}]
    _, answer = await server.post("/completion", body)
    assert answer["generation_settings"]["logit_bias"] == [{"token": 97, "bias": 1}]


async def test_the_end_of_the_context_truncates(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(respond=lambda *_: [97] * 1000))
    _, answer = await server.post("/completion", {"prompt": "ab"})
    assert (answer["truncated"], answer["stop_type"]) == (True, "limit")
    _, answer = await server.post("/completion", {"prompt": "ab", "n_predict": 3})
    assert (answer["truncated"], answer["stop_type"]) == (False, "limit")
    for length in ({"n_predict": 5000}, {"max_tokens": 511}):
        status, answer = await server.post("/completion", {"prompt": "ab", **length})
        assert (status, answer["truncated"], answer["tokens_predicted"]) == (200, True, 510)
        assert [answer["generation_settings"]["n_predict"]] == [*length.values()]
    _, answer = await server.post("/completion", {"prompt": "ab", "n_predict": 510})
    assert (answer["truncated"], answer["tokens_predicted"]) == (False, 510)


async def test_rates_leave_out_the_first_token(server: RunningServer) -> None:
    _, answer = await server.post("/completion", {"prompt": "abcd", "n_predict": 1})
    assert (answer["timings"]["predicted_n"], answer["timings"]["predicted_per_second"]) == (1, 0.0)
    _, answer = await server.post("/completion", {"prompt": "abcd", "n_predict": 4})
    timings = answer["timings"]
    assert timings["predicted_per_second"] == pytest.approx(1000 / timings["predicted_ms"] * 3)
    pieces = await chunks(server, "/completion", {"prompt": "abcd", "stream": True, "timings_per_token": True})
    assert all(piece["timings"]["predicted_n"] >= 1 for piece in pieces)


async def test_a_prompt_that_does_not_fit_has_llama_cpps_words(server: RunningServer) -> None:
    status, answer = await server.post("/completion", {"prompt": [97] * 5000})
    assert (status, answer["error"]["type"]) == (400, "exceed_context_size_error")
    assert "exceeds the available context size" in answer["error"]["message"]
    assert answer["error"]["n_ctx"] < answer["error"]["n_prompt_tokens"] == 5000


async def test_no_free_slot_is_an_error_where_it_is_asked_for(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(is_manual=True))
    assert (await server.get("/slots?fail_on_no_slot=1"))[0] == 200


async def test_only_administrators_unload_a_model(start_server: StartServer) -> None:
    server = await start_server(admin_keys=("sk-admin",))
    status, answer = await server.post("/models/unload", {"model": "fake"})
    assert (status, answer["error"]["code"]) == (401, 401)


async def test_verbose_answers_have_the_prompt_as_the_model_has_read_it(server: RunningServer) -> None:
    messages = [{"role": "user", "content": "tide"}]
    for path, body in (("/v1/chat/completions", {"messages": messages}), ("/v1/completions", {"prompt": "tide"})):
        _, answer = await server.post(path, {**body, "max_tokens": 2, "verbose": True})
        shown = answer["__verbose"]
        assert "tide" in shown["prompt"]
        assert (len(shown["tokens"]), len(shown["content"])) == (2, 2)
        _, answer = await server.post(path, {**body, "max_tokens": 2, "verbose": False})
        assert "__verbose" not in answer


async def test_answers_name_the_software_that_has_made_them(server: RunningServer) -> None:
    messages = [{"role": "user", "content": "x"}]
    for path, body in (("/v1/chat/completions", {"messages": messages}), ("/v1/completions", {"prompt": "x"})):
        _, answer = await server.post(path, body)
        names = {chunk["system_fingerprint"] for chunk in chunks_of(await server.stream_bytes(path, body))}
        assert names == {answer["system_fingerprint"]}
        assert answer["system_fingerprint"].startswith("b")
