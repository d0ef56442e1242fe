"""Scores are log probabilities, and do not depend on the size of the steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.microbenchmarks.scorer import Scorer
from engine.interface.config import EngineConfig
from engine.models.open_model import OpenModel, open_model
from server.startup.progress import silent
from tests.benchmarks.models.tiny_model import VOCAB_SIZE, write_tiny_model

WINDOW_SIZE = 150  # tokens: two tiles and a part of a third


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> OpenModel:
    return open_model(write_tiny_model(tmp_path_factory.mktemp("scorer") / "tiny.gguf"))


@pytest.fixture(scope="module")
def scorer(model: OpenModel) -> Scorer:
    return Scorer(model, EngineConfig(dtype="float32"), WINDOW_SIZE, silent)


@pytest.fixture(scope="module")
def window() -> np.ndarray:
    return np.random.default_rng(1).integers(0, VOCAB_SIZE, WINDOW_SIZE).astype(np.int32)


def test_the_probabilities_of_all_tokens_add_up_to_one(model: OpenModel) -> None:
    scorer = Scorer(model, EngineConfig(dtype="float32"), 3, silent)
    windows = [np.array([5, 9, token], np.int32) for token in range(VOCAB_SIZE)]
    scores = np.array([scorer.log_likelihoods(window) for window in windows], np.float64)
    assert np.exp(scores[:, 1]).sum() == pytest.approx(1.0, abs=1e-5)
    assert np.ptp(scores[:, 1]) > 1.0  # the model gives tokens different probabilities
    assert np.ptp(scores[:, 0]) == 0.0


def test_a_model_without_information_finds_all_tokens_equally_probable(tmp_path: Path, window: np.ndarray) -> None:
    blind = open_model(write_tiny_model(tmp_path / "blind.gguf", is_blind=True))
    scores = Scorer(blind, EngineConfig(dtype="float32"), WINDOW_SIZE, silent).log_likelihoods(window)
    assert scores.shape == (WINDOW_SIZE - 1,)
    np.testing.assert_allclose(scores, -np.log(VOCAB_SIZE), rtol=1e-6)


def test_chunks_and_page_sizes_do_not_change_the_result(model: OpenModel, scorer: Scorer, window: np.ndarray) -> None:
    chunked = EngineConfig(dtype="float32", max_num_seqs=1, max_num_batched_tokens=65, page_size=4)
    scores = Scorer(model, chunked, WINDOW_SIZE, silent).log_likelihoods(window)
    np.testing.assert_allclose(scores, scorer.log_likelihoods(window), atol=1e-4)


def test_a_token_counts_for_itself_and_those_after_it(scorer: Scorer, window: np.ndarray) -> None:
    changed = window.copy()
    changed[70] = (window[70] + 1) % VOCAB_SIZE
    before, after = scorer.log_likelihoods(window), scorer.log_likelihoods(changed)
    assert np.array_equal(before[:69], after[:69])
    assert (before[69:] != after[69:]).all()


def test_int8_pages_change_the_result_a_little(model: OpenModel, scorer: Scorer, window: np.ndarray) -> None:
    scores = Scorer(model, EngineConfig(dtype="float32", kv_cache_dtype="int8"), WINDOW_SIZE, silent).log_likelihoods(
        window
    )
    error = np.abs(scores - scorer.log_likelihoods(window))
    assert 0.0 < error.max() < 0.2


def test_a_window_of_another_size_is_refused(scorer: Scorer, window: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"has the shape \(149,\); it must be \(150,\)"):
        scorer.log_likelihoods(window[1:])
