"""The offline API on the default model: the reference's tokens, however they are asked for."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from engine.client import EngineClient
from engine.engine import Engine
from engine.interface.types import FinishReason
from sampling.host.params import SamplingParams
from server.offline.batch import Output
from server.offline.llm import LLM
from server.startup.model_loader import LoadedModel
from server.text.text_model import TextModel

GOLDENS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "golden" / "smollm2_greedy.json").read_text(encoding="utf-8")
)["prompts"]
TIE = 1e-4  # where the reference's two best logits are closer than this, rounding decides
GREEDY = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)


@contextmanager
def opened(engine: Engine, text_model: TextModel) -> Iterator[LLM]:
    """With a short queue; the engine is left as it was found."""
    config = engine.config
    short = dataclasses.replace(config, max_num_queued_requests=8)
    engine.config = short
    client = EngineClient(engine)
    engine.config = config
    with LLM.from_loaded(LoadedModel(client, text_model), model=text_model.name, config=short) as llm:
        yield llm
        assert llm.stats().compiles_after_ready == 0
    engine.pool.check()
    assert engine.pool.num_active == 0


@pytest.fixture
def llm(real_engine: Engine, text_model: TextModel) -> Iterator[LLM]:
    """Over the session's engine."""
    with opened(real_engine, text_model) as llm:
        yield llm


@pytest.fixture
def exact_llm(exact_engine: Engine, text_model: TextModel) -> Iterator[LLM]:
    """In float32."""
    with opened(exact_engine, text_model) as llm:
        yield llm


def short_goldens(count: int) -> list[dict[str, Any]]:
    """Those of plain texts, the shortest first."""
    texts = [golden for golden in GOLDENS if "text" in golden]
    return sorted(texts, key=lambda golden: len(golden["prompt_token_ids"]))[:count]


def assert_golden(output: Output, golden: dict[str, Any]) -> None:
    num_compared = len(output.token_ids)
    for position, gap in enumerate(golden["logit_gaps"][:num_compared]):
        if gap < TIE:
            num_compared = position
            break
    assert output.prompt_token_ids == golden["prompt_token_ids"]
    assert output.token_ids[:num_compared] == golden["output_token_ids"][:num_compared]


def test_the_tokens_of_the_reference(exact_llm: LLM) -> None:
    goldens = short_goldens(6)
    outputs = exact_llm.generate([golden["text"] for golden in goldens], GREEDY, progress=False)
    for output, golden in zip(outputs, goldens, strict=True):
        assert_golden(output, golden)
        assert output.finish_reason is FinishReason.LENGTH


def test_the_same_in_a_batch_and_alone(llm: LLM) -> None:
    prompts = [golden["text"] for golden in short_goldens(6)]
    together = llm.generate(prompts, GREEDY, progress=False)
    for prompt, output in list(zip(prompts, together, strict=True))[:2]:
        alone = llm.generate(prompt, GREEDY)
        assert (alone.text, alone.token_ids) == (output.text, output.token_ids)
        with llm.stream(prompt, GREEDY) as stream:
            deltas = list(stream)
        assert "".join(delta.text for delta in deltas) == output.text
        assert [token_id for delta in deltas for token_id in delta.token_ids] == output.token_ids


def test_forty_prompts_through_a_queue_of_eight(llm: LLM) -> None:
    prompts = [f"Number {index} is" for index in range(40)]
    params = [SamplingParams(max_tokens=2, temperature=0.8, seed=index) for index in range(40)]
    outputs = llm.generate(prompts, params, progress=False)
    assert [output.usage.num_completion_tokens for output in outputs] == [2] * 40
    for index in (0, 39):
        assert llm.generate(prompts[index], params[index]).token_ids == outputs[index].token_ids


def test_closing_a_stream_early_leaves_nothing_running(llm: LLM, real_engine: Engine) -> None:
    stream = llm.stream("Once upon a time", max_tokens=400, ignore_eos=True)
    assert next(stream).token_ids
    stream.close()
    assert llm.generate("A tide", max_tokens=2, temperature=0).finish_reason is FinishReason.LENGTH
    assert (llm.stats().num_running, llm.stats().num_waiting) == (0, 0)
    assert stream.usage.num_completion_tokens < 400


def test_threads_and_several_answers(llm: LLM) -> None:
    def work(number: int) -> list[list[int]]:
        output = llm.generate("The sea is", n=2, max_tokens=4, seed=number)
        return [answer.token_ids for answer in output.answers]

    with ThreadPoolExecutor(4) as workers:
        answers = list(workers.map(work, [1, 2, 1, 2]))
    assert answers[0] == answers[2]
    assert answers[1] == answers[3]
    assert answers[0][1] == answers[1][0]  # the second answer's seed is the next one


def test_chat_and_counts(llm: LLM) -> None:
    messages = [{"role": "user", "content": "Say hello."}]
    output = llm.chat(messages, temperature=0, max_tokens=4)
    assert output.usage.num_prompt_tokens == llm.count_tokens(messages) == 33
    assert llm.count_tokens("Once upon a time") == 4


def test_the_engines_life(llm: LLM) -> None:
    before = llm.generate("Once upon a time", GREEDY)
    llm.sleep()
    llm.wake()
    assert llm.generate("Once upon a time", GREEDY).token_ids == before.token_ids
    llm.pause()
    stream = llm.stream("Once upon a time", GREEDY)
    llm.resume()
    assert [token_id for delta in stream for token_id in delta.token_ids] == before.token_ids
    assert llm.reset_prefix_cache()
