"""Random model files: Eagre opens them, and their weights are of the size that keeps products in bounds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.models.random_file import write_random
from benchmarks.models.shapes import SHAPES, ModelShape
from engine.models.open_model import open_model
from engine.weights.formats.gguf_tensors import GGUFTensors
from server.text.tokenization.gguf_metadata import read_gguf_metadata

VOCAB_SIZE = 49_160


def small(name: str) -> ModelShape:
    experts = {"num_experts": 4, "num_picked": 2} if SHAPES[name].num_experts else {}
    return replace(
        SHAPES[name], num_layers=2, hidden=256, num_heads=4, num_kv_heads=2, inner=256, vocab_size=VOCAB_SIZE, **experts
    )


@pytest.mark.parametrize("name", SHAPES)
def test_a_file_of_each_shape_is_a_model(name: str, model_path: Path, tmp_path: Path) -> None:
    path, told = tmp_path / "random.gguf", list[tuple[int, int]]()
    write_random(path, name, small(name), model_path, lambda *step: told.append(step))
    opened, tokens = open_model(path), read_gguf_metadata(path).tokens
    assert (opened.config.num_layers, opened.config.vocab_size) == (2, VOCAB_SIZE)
    assert opened.quantization == "Q4_K_M"
    assert (len(tokens), tokens[-1]) == (VOCAB_SIZE, f"[{VOCAB_SIZE - 1}]")
    assert told[-1] == (told[-1][1], told[-1][1])
    for tensor in ("blk.0.attn_q.weight", "token_embd.weight"):
        stored = GGUFTensors(path).tensor(tensor)
        assert stored is not None
        weights = stored.float32()
        assert np.std(weights) * weights.shape[1] ** 0.5 == pytest.approx(1.0, abs=0.1)


def test_a_vocabulary_larger_than_the_shape_is_refused(model_path: Path, tmp_path: Path) -> None:
    shape = replace(small("llama-3.2-1b"), vocab_size=1000)
    with pytest.raises(ValueError, match="49152 tokens, more than the shape's 1000"):
        write_random(tmp_path / "random.gguf", "x", shape, model_path, lambda done, total: None)
