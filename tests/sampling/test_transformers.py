"""The reference and the sampler beside the logits processors of Hugging Face transformers."""

import json
from pathlib import Path

import numpy as np
import pytest

from sampling.host.params import SamplingParams
from sampling.host.rows import POSITION, used_features
from sampling.logprobs import TOKEN
from tests.sampling.agreement import draws_of
from tests.sampling.batches import apply_alone, batch_of, sample_batch
from tests.sampling.reference import Request, best_token, distribution, processed

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "sampling.json").read_text(encoding="utf-8"))
VOCAB_SIZE = 600  # of other tests, whose programs serve here too; the tokens that the golden data lack are impossible


def wide(rows: list[list[float | None]]) -> np.ndarray:
    """float32[num_rows, VOCAB_SIZE]."""
    logits = np.full((len(rows), VOCAB_SIZE), -np.inf, np.float32)
    for row, values in enumerate(rows):
        logits[row, : len(values)] = [-np.inf if value is None else value for value in values]
    return logits


LOGITS = wide(GOLDEN["logits"])


def request_of(case: dict) -> Request:
    def frozen(value: object) -> object:
        return tuple(map(frozen, value)) if isinstance(value, list) else value

    params = SamplingParams(max_tokens=100, **{name: frozen(value) for name, value in case["params"].items()})
    return Request(
        params, tuple(case.get("prompt", ())), tuple(case.get("output", ())), frozenset(params.stop_token_ids)
    )


def logits_of(cases: list[dict]) -> np.ndarray:
    return LOGITS[np.arange(len(cases)) % len(LOGITS)]


@pytest.mark.parametrize("index", range(len(GOLDEN["changes"])))
def test_what_changes_logits(index):
    case = GOLDEN["changes"][index]
    request, logits, expected = request_of(case), logits_of(GOLDEN["changes"])[index], wide([case["logits"]])[0]
    np.testing.assert_allclose(processed(logits, request), expected, atol=2e-6)
    (name,) = set(used_features(request.params)) - {"history"}
    np.testing.assert_allclose(apply_alone(name, batch_of([request], logits[None]))[0], expected, atol=2e-6)


def test_what_the_reference_keeps():
    for case, logits in zip(GOLDEN["cuts"], logits_of(GOLDEN["cuts"]), strict=True):
        assert np.flatnonzero(distribution(logits, request_of(case)).total).tolist() == case["kept"], case["params"]


def test_what_is_ever_drawn(backend):
    cases = GOLDEN["cuts"]
    requests, logits = [request_of(case) for case in cases], logits_of(cases)
    tokens = draws_of(backend, requests, logits, num_draws=1000)
    for row, case in enumerate(cases):
        # A token of 1 % is missed by all draws once in 20 000 cases.
        likely = np.flatnonzero(distribution(logits[row], requests[row]).total >= 0.01)
        assert set(likely.tolist()) <= set(tokens[row].tolist()) <= set(case["kept"]), case["params"]


def test_greedy_outputs(backend):
    cases = GOLDEN["loops"]
    requests = [request_of({**case, "output": [], "params": {**case["params"], "temperature": 0.0}}) for case in cases]
    batch = batch_of(requests, np.zeros((len(cases), VOCAB_SIZE), np.float32))
    outputs: list[list[int]] = [[] for _ in cases]
    for step in range(len(cases[0]["output"])):
        batch.logits[: len(cases)] = logits = LOGITS[step % len(LOGITS)]
        batch.rows.ints[: len(cases), POSITION] = [len(request.prompt) + step for request in requests]
        out, batch = sample_batch(backend, batch)
        for row, request in enumerate(requests):
            so_far = Request(request.params, request.prompt, tuple(outputs[row]), request.stop_ids)
            outputs[row].append(int(out[row, TOKEN]))
            assert outputs[row][-1] == best_token(logits, so_far)
    assert outputs == [case["output"] for case in cases]
