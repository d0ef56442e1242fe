"""`num_prompt_output_tokens` on the default model: an answer that was cut goes on as if it never had been."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import pytest

from engine.client import EngineClient
from engine.engine import Engine
from sampling.host.params import InvalidParameter, SamplingParams
from server.offline.llm import LLM
from server.startup.model_loader import LoadedModel
from server.text.text_model import TextModel
from tests.feature_sets import FEATURE_SETS
from tests.server.support.real_server import serving
from tests.server.support.sse_reader import chunks_of

PROMPT = "Once upon a time there was a cat, and the cat had a hat. The cat"
NUM_TOKENS = 12
MORE_SETS: list[dict[str, Any]] = [
    {"temperature": 1.0, "min_tokens": 9, "presence_penalty": 1.5, "frequency_penalty": 0.5},
    {"temperature": 1.0, "bad_words": ((260,), (28, 260), (253,)), "repetition_penalty": 1.5, "min_tokens": 3},
]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture
def llm(real_engine: Engine, text_model: TextModel) -> Iterator[LLM]:
    loaded = LoadedModel(EngineClient(real_engine), text_model)
    with LLM.from_loaded(loaded, model=text_model.name, config=real_engine.config) as llm:
        yield llm
    assert real_engine.pool.num_active == 0


def test_every_sampling_feature_goes_on_where_it_stood(llm: LLM) -> None:
    wishes = [
        SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=index % 2 == 0, **features, seed=index)
        for index, features in enumerate([*FEATURE_SETS, *MORE_SETS])
    ]
    wholes = llm.generate([PROMPT] * len(wishes), wishes, progress=False)
    cut = 5
    begun = [whole.prompt_token_ids + whole.token_ids[:cut] for whole in wholes]
    rests = llm.generate(begun, wishes, progress=False, num_prompt_output_tokens=cut)
    for wish, whole, rest in zip(wishes, wholes, rests, strict=True):
        assert rest.token_ids == whole.token_ids[cut:], wish
        assert rest.finish_reason is whole.finish_reason
        assert rest.usage.num_prompt_tokens == whole.usage.num_prompt_tokens + cut
    # The same tokens as a mere prompt are something else, or the test would prove nothing.
    longer = [dataclasses.replace(wish, max_tokens=NUM_TOKENS - cut, min_tokens=0) for wish in wishes]
    as_prompts = llm.generate(begun, longer, progress=False)
    assert [output.token_ids for output in as_prompts] != [rest.token_ids for rest in rests]


def test_a_grammar_goes_on_where_it_stood(llm: LLM) -> None:
    wish = SamplingParams(max_tokens=60, temperature=1.0, seed=4)
    options = {"structured_outputs": {"json": PERSON}}
    whole = llm.generate(PROMPT, wish, **options)
    for cut in (1, 6, 11):
        begun = whole.prompt_token_ids + whole.token_ids[:cut]
        rest = llm.generate(begun, wish, num_prompt_output_tokens=cut, **options)
        assert rest.token_ids == whole.token_ids[cut:]
    assert set(json.loads(whole.text)) == {"name", "age"}
    with pytest.raises(InvalidParameter, match="follows its grammar"):
        llm.generate(whole.prompt_token_ids, wish, num_prompt_output_tokens=2, **options)


def test_what_cannot_be_an_answer_so_far_is_refused(llm: LLM) -> None:
    whole = llm.generate(PROMPT, SamplingParams(max_tokens=4, temperature=0.0))
    begun = whole.prompt_token_ids + whole.token_ids
    for options, reason in (
        ({"num_prompt_output_tokens": len(begun)}, "it must be at least 0, and less than the prompt has"),
        ({"num_prompt_output_tokens": 4, "max_tokens": 4}, "it must be less"),
        ({"num_prompt_output_tokens": -1}, "at least 0"),
    ):
        with pytest.raises(InvalidParameter, match=reason) as error:
            llm.generate(begun, **options)
        assert error.value.param == "num_prompt_output_tokens"


async def test_text_and_stop_strings_go_on_over_the_wire(real_engine: Engine, text_model: TextModel) -> None:
    engine = EngineClient(real_engine)
    engine.start(asyncio.get_running_loop())
    async with serving(engine, text_model) as server:
        asked: dict[str, Any] = {
            "prompt": PROMPT,
            "temperature": 1.0,
            "seed": 6,
            "max_tokens": 20,
            "return_token_ids": True,
        }
        _, answer = await server.post("/v1/completions", asked)
        (whole,) = answer["choices"]
        cut = 7
        begun = {**asked, "prompt": whole["prompt_token_ids"] + whole["token_ids"][:cut]}
        begun["num_prompt_output_tokens"] = cut
        seen = text_model.tokenizer.decode(whole["token_ids"][:cut])
        _, answer = await server.post("/v1/completions", begun)
        assert seen + answer["choices"][0]["text"] == whole["text"]
        assert answer["usage"]["completion_tokens"] == 20 - cut
        # A stop string that begins in what was seen and ends behind it.
        stop = whole["text"][len(seen) - 4 : len(seen) + 3]
        assert whole["text"].count(stop) == 1
        _, answer = await server.post("/v1/completions", {**begun, "stop": stop})
        assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == ("", "stop")
        body = {**begun, "stop": stop, "include_stop_str_in_output": True, "stream": True}
        async with server.http.post(server.url + "/v1/completions", json=body) as response:
            chunks = chunks_of(await response.read())
        assert "".join(choice["text"] for chunk in chunks for choice in chunk["choices"]) == stop[4:]
        await server.wait_idle()
    engine.shutdown()
