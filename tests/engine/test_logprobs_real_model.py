"""Logprobs and greedy output of the real model in float32 equal those of PyTorch and transformers."""

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from engine.client import EngineClient
from sampling.host.params import SamplingParams
from tests.thoroughness import IS_FULL

GOLDEN = Path(__file__).parents[1] / "golden"
PROMPTS = {entry["name"]: entry for entry in json.loads((GOLDEN / "smollm2_greedy.json").read_text())["prompts"]}
ENTRIES = json.loads((GOLDEN / "smollm2_logprobs.json").read_text())["entries"]
SCORED = [entry for entry in ENTRIES if entry["kind"] == "scored"]
STEERED = [entry for entry in ENTRIES if entry["kind"] == "steered"]
EOS = 2  # of the model
WITHIN = 1e-4
TIE = 1e-4  # if the two best logits of the reference are closer than this, rounding decides


@pytest.fixture
async def client(exact_engine):
    client = EngineClient(exact_engine)
    client.start(asyncio.get_running_loop())
    yield client
    stats = client.stats()
    client.shutdown()
    exact_engine.pool.check()
    assert stats.compiles_after_ready == 0
    assert exact_engine.pool.num_active == 0


async def generate(client, prompt, **params):
    """The token ids, their logprobs, and the logprobs of the prompt."""
    token_ids, logprobs, of_prompt = [], [], []
    async for event in client.submit(prompt, SamplingParams(ignore_eos=True, **params)):
        assert event.error is None
        token_ids += event.token_ids
        if event.logprobs is not None:
            assert len(event.logprobs) == len(event.token_ids)
            logprobs += event.logprobs
        if event.prompt_logprobs is not None:
            of_prompt.append(event.prompt_logprobs)
    return token_ids, logprobs, of_prompt


@pytest.mark.parametrize("entry", SCORED, ids=lambda entry: entry["name"])
async def test_logprobs_of_a_prompt_are_those_of_the_reference(client, entry):
    """A long prompt is computed in chunks, which takes its time; the logprobs are the same once pages are cached."""
    prompt = PROMPTS[entry["name"]]["prompt_token_ids"]
    for _ in range(2 if IS_FULL or entry["name"] != "long" else 1):
        _, _, (scores,) = await generate(client, prompt, max_tokens=1, temperature=0.0, prompt_logprobs=5)
        assert len(scores) == len(prompt)
        assert scores[0] is None
        np.testing.assert_allclose([score.logprob for score in scores[1:]], entry["logprobs"], rtol=0, atol=WITHIN)
        for score, rank, best_ids, best in zip(
            scores[1:], entry["ranks"], entry["best_ids"], entry["best_logprobs"], strict=True
        ):
            assert abs(score.rank - rank) <= max(1, rank // 1000)  # tokens of almost the same probability
            np.testing.assert_allclose([logprob for _, logprob in score.top], best, rtol=0, atol=WITHIN)
            of = dict(zip(best_ids, best, strict=True))
            for token_id, logprob in score.top:
                # At a tie, another token may be in the last place.
                assert abs(of.get(token_id, best[-1]) - logprob) <= WITHIN


@pytest.mark.parametrize("entry", STEERED, ids=lambda entry: f"{entry['name']} {entry['title']}")
async def test_greedy_output_under_a_processor_is_that_of_the_reference(client, entry):
    params = {
        name: tuple(map(tuple, value)) if isinstance(value, list) else value for name, value in entry["params"].items()
    }
    if "min_tokens" in params:
        params["stop_token_ids"] = (EOS,)  # banned in the reference
    output, _, _ = await generate(
        client, PROMPTS[entry["name"]]["prompt_token_ids"], max_tokens=len(entry["output"]), temperature=0.0, **params
    )
    ties = [index for index, gap in enumerate(entry["gaps"]) if gap < TIE]
    assert not ties
    assert output == entry["output"]


async def test_logprobs_of_an_output_are_those_of_the_same_text_as_a_prompt(client):
    """Logprobs of tokens decoded one by one equal those of one pass over the whole text as a prompt."""
    prompt = PROMPTS["story"]["prompt_token_ids"]
    listed = (28, 30, 198)
    output, logprobs, _ = await generate(
        client, prompt, max_tokens=40, temperature=0.9, seed=4, repetition_penalty=1.2, logprobs=20,
        logprob_token_ids=listed,
    )  # fmt: skip
    _, _, (scores,) = await generate(client, prompt + output, max_tokens=1, prompt_logprobs=20)
    for token_id, own, forced in zip(output, logprobs, scores[len(prompt) :], strict=True):
        assert abs(own.logprob - forced.logprob) <= WITHIN
        assert abs(own.rank - forced.rank) <= max(1, own.rank // 1000)
        assert len(own.top) == 20
        np.testing.assert_allclose([p for _, p in own.top], [p for _, p in forced.top], rtol=0, atol=WITHIN)
        best = dict(own.top)
        assert best.get(token_id, own.logprob) == own.logprob
        for listed_id, logprob in zip(listed, own.listed, strict=True):
            assert best.get(listed_id, logprob) == logprob
        total = sum(np.exp(p) for p in best.values()) + (0 if token_id in best else np.exp(own.logprob))
        assert total <= 1 + 1e-5


async def test_logprobs_of_other_requests_change_nothing(client):
    """Tokens and logprobs stay the same, alone and beside requests of every other level."""
    prompt = PROMPTS["story"]["prompt_token_ids"]
    wishes = [
        {"temperature": 0.0},
        {"temperature": 1.0, "seed": 1, "top_p": 0.9},
        {"temperature": 1.0, "seed": 1, "top_p": 0.9, "logprobs": 2},
        {"temperature": 0.0, "logprobs": 5, "frequency_penalty": 0.5, "prompt_logprobs": 1},
    ]
    alone = [await generate(client, prompt, max_tokens=12, **wish) for wish in wishes]
    together = await asyncio.gather(*(generate(client, prompt, max_tokens=12, **wish) for wish in wishes))
    for (tokens, logprobs, _), (expected, expected_logprobs, _) in zip(together, alone, strict=True):
        assert tokens == expected
        assert [score.logprob for score in logprobs] == pytest.approx([score.logprob for score in expected_logprobs])
    assert alone[1][0] == alone[2][0]


async def test_a_prompt_of_one_token_has_no_logprobs(client):
    for prompt in ([5], [5, 6]):
        _, _, (scores,) = await generate(client, prompt, max_tokens=2, prompt_logprobs=0)
        assert scores[0] is None
        assert len(scores) == len(prompt)
        assert all(score.top == [] for score in scores[1:])
