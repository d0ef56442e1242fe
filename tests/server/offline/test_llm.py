"""The offline API over the fake engine: prompts and conversations, one and many, from any thread."""

from __future__ import annotations

import asyncio
import copy
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import eagre
from engine.interface.errors import ModelError
from engine.interface.types import DeadEnd, FinishReason
from sampling.host.params import InvalidParameter, SamplingParams
from server.generation.answers import Usage
from server.model_sources.cache_folder import ModelStoreError
from server.offline.llm import LLM
from tests.fakes.engine_client import FakeEngineClient, token_logprobs
from tests.fakes.text_model import EOS, FakeTextModel, render
from tests.server.offline.conftest import MakeLLM


def test_one_prompt_gives_one_output(llm: LLM) -> None:
    output = llm.generate("tidé 🌊", max_tokens=64)
    assert output.text == "tidé 🌊"
    assert output.token_ids == [*"tidé 🌊".encode(), EOS]
    assert output.prompt_token_ids == list("tidé 🌊".encode())
    assert output.finish_reason is FinishReason.STOP
    assert output.usage == Usage(len("tidé 🌊".encode()), len("tidé 🌊".encode()) + 1, 0)
    assert output.num_cached_tokens == 0


def test_token_ids_are_a_prompt_too(llm: LLM) -> None:
    assert llm.generate([104, 105]).text == "hi"
    assert [output.text for output in llm.generate([[104], [105]], progress=False)] == ["h", "i"]


def test_many_prompts_come_back_in_order(llm: LLM) -> None:
    prompts = ["x" * (50 - index) + str(index) for index in range(50)]  # the first takes longest
    outputs = llm.generate(prompts, max_tokens=100, progress=False)
    assert [output.text for output in outputs] == prompts


def test_one_prompt_has_one_embedding_and_many_have_many(llm: LLM) -> None:
    assert llm.embed("abc").tolist() == [97, 99, 3]
    assert llm.embed([104, 105], pooling="mean").tolist() == [-104, -105, -2]
    assert llm.embed(["abc", "de"]).tolist() == [[97, 99, 3], [100, 101, 2]]
    assert llm.embed([]).shape == (0, 0)
    assert llm.embed([[104], [105, 106]]).tolist() == [[104, 104, 1], [105, 106, 2]]


def test_what_cannot_be_embedded_is_refused(llm: LLM) -> None:
    with pytest.raises(InvalidParameter, match="pooling is 'median'; it must be "):
        llm.embed("abc", pooling="median")
    with pytest.raises(InvalidParameter, match="the prompt is empty"):
        llm.embed([[104], []])
    with pytest.raises(InvalidParameter, match="the prompt has 512 tokens"):
        llm.embed("x" * 511)


def test_no_prompts_give_no_outputs(llm: LLM) -> None:
    assert llm.generate([]) == []


def test_several_answers(llm: LLM) -> None:
    output = llm.generate("abc", n=3, seed=7)
    assert [answer.index for answer in output.answers] == [0, 1, 2]
    assert [answer.text for answer in output.answers] == ["abc"] * 3
    assert output.usage == Usage(3, 12, 0)


def test_stop_strings_cut_as_over_http(llm: LLM) -> None:
    output = llm.generate("one END two", stop="END", max_tokens=64)
    assert (output.text, output.finish_reason) == ("one ", FinishReason.STOP)
    output = llm.generate("one END two", stop=["END"], include_stop_str_in_output=True, max_tokens=64)
    assert output.text == "one END"


def test_params_are_the_engines_and_keywords_win(make_llm: MakeLLM) -> None:
    engine = FakeEngineClient()
    llm = make_llm(engine)
    params = SamplingParams(
        max_tokens=5,
        temperature=0.5,
        top_k=3,
        top_p=0.9,
        min_p=0.1,
        typical_p=0.8,
        top_n_sigma=1.5,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.1,
        dry_multiplier=0.8,
        dry_base=2.0,
        dry_allowed_length=3,
        dry_penalty_last_n=64,
        dry_breaker_ids=(10, 58),
        xtc_probability=0.5,
        xtc_threshold=0.2,
        min_tokens=2,
        seed=4,
        stop_token_ids=(1, 2),
        ignore_eos=True,
        logit_bias=((3, 1.5), (4, -2.0)),
        allowed_token_ids=(97, 98),
        bad_words=((97, 98), (99,)),
        logprobs=2,
        prompt_logprobs=1,
        logprob_token_ids=(5,),
    )
    messages = [{"role": "user", "content": "hello"}]
    for generate in (partial(llm.generate, "a"), partial(llm.chat, messages)):
        generate(params)
        assert engine.submitted[-1].params == params
        generate(params, max_tokens=3, bad_words=["zz"], logit_bias={"7": 1.0}, min_tokens=0, seed=None)
        changed = {
            "max_tokens": 3,
            "bad_words": ((122, 122), (32, 122, 122)),
            "logit_bias": ((7, 1.0),),
            "min_tokens": 0,
        }
        assert engine.submitted[-1].params == replace(params, **changed)
    each = [SamplingParams(max_tokens=length) for length in (1, 2, 3)]
    outputs = llm.generate(["abcdef"] * 3, each, progress=False)
    assert [output.text for output in outputs] == ["a", "ab", "abc"]
    assert [output.finish_reason for output in outputs] == [FinishReason.LENGTH] * 3


def test_params_that_are_not_given_are_the_models_as_with_keywords(make_llm: MakeLLM) -> None:
    engine = FakeEngineClient()
    llm = make_llm(engine, FakeTextModel(temperature=0.3, top_k=7))
    calls: list[tuple[eagre.SamplingParams | None, dict[str, Any]]] = [
        (None, {"max_tokens": 8}),
        (eagre.SamplingParams(max_tokens=8), {}),
        (eagre.SamplingParams(8), {}),
        (copy.copy(eagre.SamplingParams(max_tokens=8)), {}),
        (copy.deepcopy(eagre.SamplingParams(max_tokens=8)), {}),
        (eagre.SamplingParams(max_tokens=8, temperature=1.0), {"temperature": 0.3}),
    ]
    for params, keywords in calls:
        llm.generate("a", params, **keywords)
        assert engine.submitted[-1].params == SamplingParams(max_tokens=8, temperature=0.3, top_k=7)
    llm.generate("a", eagre.SamplingParams(max_tokens=8, temperature=1.0))
    assert engine.submitted[-1].params == SamplingParams(max_tokens=8, temperature=1.0, top_k=7)
    messages = [{"role": "user", "content": "hello"}]
    llm.chat(messages)
    llm.chat(messages, eagre.SamplingParams(temperature=0.3))
    assert engine.submitted[-1].params == engine.submitted[-2].params  # the length is that of a chat too


def test_chat(llm: LLM) -> None:
    first, second = {"role": "user", "content": "hello"}, {"role": "user", "content": "bye"}
    assert llm.chat([first]).text == render(first)
    assert [output.text for output in llm.chat([[first], [second]], progress=False)] == [render(first), render(second)]
    with llm.stream_chat([first, second]) as stream:
        assert "".join(delta.text for delta in stream) == render(first, second)


def test_count_tokens(llm: LLM) -> None:
    message = {"role": "user", "content": "hello"}
    assert llm.count_tokens("é!") == 3
    assert llm.count_tokens("") == 0
    assert llm.count_tokens([message]) == len(render(message)) == llm.chat([message]).usage.num_prompt_tokens


def test_logprobs_come_with_outputs_and_deltas(llm: LLM) -> None:
    output = llm.generate("abc", logprobs=2, prompt_logprobs=0)
    assert output.logprobs == [token_logprobs(token_id, 2) for token_id in (97, 98, 99, EOS)]
    assert output.prompt_logprobs == [None, token_logprobs(98, 0), token_logprobs(99, 0)]
    assert output.answers[0].cumulative_logprob == -(98 + 99 + 100 + EOS + 1) / 32
    deltas = list(llm.stream("abc", SamplingParams(logprobs=0, prompt_logprobs=0)))
    assert [logprobs for delta in deltas for logprobs in delta.logprobs or ()] == [
        token_logprobs(token_id, 0) for token_id in (97, 98, 99, EOS)
    ]
    assert [delta.prompt_logprobs for delta in deltas] == [output.prompt_logprobs] + [None] * (len(deltas) - 1)
    chat = llm.chat([{"role": "user", "content": "hello"}], logprobs=True, top_logprobs=1, max_tokens=1)
    assert chat.logprobs == [token_logprobs(ord("u"), 1)]
    plain = llm.generate("abc")
    assert (plain.logprobs, plain.prompt_logprobs, plain.answers[0].cumulative_logprob) == (None, None, None)


def test_the_best_of_several(make_llm: MakeLLM) -> None:
    engine = FakeEngineClient(respond=lambda _, params: [[98, 98], [97, 122], [97]][(params.seed or 0) - 5])
    llm = make_llm(engine)
    output = llm.generate("x", n=2, best_of=3, seed=5, max_tokens=1)
    assert [(answer.index, answer.text) for answer in output.answers] == [(0, "a"), (1, "a")]
    assert output.usage.num_completion_tokens == 3
    with pytest.raises(InvalidParameter, match="when streaming they must be equal"):
        llm.stream("x", best_of=2)


def test_threads_share_the_model(make_llm: MakeLLM) -> None:
    llm = make_llm(FakeEngineClient(max_num_queued=5))

    def work(number: int) -> list[str]:
        prompts = [f"{number}-{index}" for index in range(5)]
        streamed = "".join(delta.text for delta in llm.stream(prompts[0]))
        return [streamed, *(output.text for output in llm.generate(prompts, progress=False))]

    with ThreadPoolExecutor(8) as workers:
        for number, texts in enumerate(workers.map(work, range(16))):
            assert texts == [f"{number}-0", *(f"{number}-{index}" for index in range(5))]


async def test_it_works_where_a_loop_runs_already(llm: LLM) -> None:
    assert llm.generate("abc").text == "abc"
    assert "".join(delta.text for delta in llm.stream("abc")) == "abc"
    assert (await asyncio.to_thread(llm.generate, "abc")).text == "abc"


@pytest.mark.parametrize(
    ("content", "settings", "error"),
    [
        (None, {}, ModelStoreError),
        (b"no model", {}, ModelStoreError),
        (b"GGUF and then nothing of use", {}, ModelError),
        (b"GGUF", {"dtype": "int3"}, ValueError),
        (b"GGUF", {"max_num_slots": 3}, TypeError),
    ],
)
def test_what_cannot_be_loaded(
    tmp_path: Path, content: bytes | None, settings: dict[str, Any], error: type[Exception]
) -> None:
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(error):
        LLM(path, progress=False, **settings)


def test_a_text_that_is_no_unicode_is_not_counted(llm: LLM) -> None:
    with pytest.raises(InvalidParameter) as refused:
        llm.count_tokens("\ud800")
    assert refused.value.param == "prompt"


def test_a_dead_end_is_told_of(make_llm: MakeLLM) -> None:
    engine = FakeEngineClient(is_manual=True)
    stream = make_llm(engine).stream("abc")
    engine.dead_end_soon("nothing is left to choose")
    with pytest.raises(DeadEnd, match="nothing is left to choose"):
        next(stream)
