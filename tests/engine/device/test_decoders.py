"""The logits of every family of decoders: those of transformers in float32, and near them in fewer bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.interface.config import EngineConfig
from tests.engine.device.conftest import FolderOf
from tests.engine.models.test_architectures import CHUNK, CONTEXTS, GOLDENS, SHAPE
from tests.forward_steps import QUICK_TO_COMPILE, ForwardSteps

XLA = EngineConfig(matmul_backend="xla", attention_backend="xla")
WITH_PAGES_OF_INT8 = ["llama", "gemma3", "qwen3_next", "deepseek_v3", "gpt_oss", "falcon_alibi", "falcon_h1"]


def logits_of(folder_of: FolderOf, name: str, **changes: Any) -> tuple[np.ndarray, np.ndarray]:
    """What a model computes of its golden's sequences, and the first of these logits as transformers has them."""
    prompts = GOLDENS[name]["prompts"]
    config = replace(XLA, max_model_len=CONTEXTS.get(name), **changes)
    steps = ForwardSteps.load(folder_of(name), config, QUICK_TO_COMPILE)
    sequences = [prompt["prompt_token_ids"] + prompt["output_token_ids"][:-1] for prompt in prompts]
    num_decoded = len(prompts[0]["output_token_ids"]) - 1
    got = steps.logits(sequences, num_decoded=num_decoded, chunk=CHUNK, shape=SHAPE, waits=False)
    return got, np.array([prompt["logits"] for prompt in prompts])


def assert_near(got: np.ndarray, expected: np.ndarray, most: float) -> None:
    """By the relative root mean square error."""
    got = got[:, : expected.shape[1]]
    assert np.isfinite(got).all()
    assert np.sqrt(((got - expected) ** 2).mean() / (expected**2).mean()) < most


@pytest.mark.parametrize("name", GOLDENS)
def test_float32(folder_of: FolderOf, name: str) -> None:
    got, expected = logits_of(folder_of, name, dtype="float32")
    np.testing.assert_allclose(got[:, : expected.shape[1]], expected, rtol=0, atol=1e-4)
    assert got.argmax(axis=-1).tolist() == [prompt["output_token_ids"] for prompt in GOLDENS[name]["prompts"]]


@pytest.mark.parametrize("name", GOLDENS)
def test_bfloat16(folder_of: FolderOf, name: str) -> None:
    """A mixture of few experts with random weights may choose others."""
    assert_near(*logits_of(folder_of, name, dtype="bfloat16"), most=0.3)


@pytest.mark.parametrize("name", WITH_PAGES_OF_INT8)
def test_pages_of_int8(folder_of: FolderOf, name: str) -> None:
    assert_near(*logits_of(folder_of, name, dtype="float32", kv_cache_dtype="int8"), most=0.1)
