"""Products of float32 ask the device for all bits: GPUs and TPUs round what they multiply unless told not to."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from engine.backends.base.token_layout import pages_per_block
from engine.interface.config import TILE_SIZE, EngineConfig
from engine.models.open_model import open_model
from engine.parallel.placement import choose_devices, shapes_of
from engine.step import picture_encoding
from engine.step.forward import encode, forward, forward_prompt, pool_tile, score_tile
from engine.step.inputs import StepBatch
from engine.step.shapes import StepShape
from engine.weights.layout import Precision
from sampling.state import Slots
from tests.engine.models.test_encoders import GOLDENS, write_golden
from tests.engine.workloads import write_folder
from tests.golden.pictures.tiny_folder import write_tiny_folder

PICTURES = Path(__file__).parents[2] / "golden" / "pictures"
_PRODUCT = re.compile(r"stablehlo\.dot_general .*")
_EXACT = "precision = [HIGHEST, HIGHEST]"


def products_of_float32(text: str) -> list[bool]:
    """Of each in a lowered program, whether it asks for all bits."""
    lines = [line for line in _PRODUCT.findall(text) if "bf16" not in line]
    return [_EXACT in line for line in lines]


class Lowered:
    """The programs of a tiny model, lowered as an engine with portable backends would."""

    def __init__(self, folder: Path, dtype: str) -> None:
        config = EngineConfig(dtype=dtype, matmul_backend="xla", attention_backend="xla", max_model_len=128)
        opened = open_model(folder)
        self.backends = choose_devices(config, opened.model).backends
        params = opened.load(self.backends.weights, Precision.of_engine(config), lambda *step: None).params
        layout = opened.config.kv_layout(2, 32, dtype)
        layout = replace(layout, pictures=picture_encoding.picture_positions(opened.model.encoder, 128))
        self.model, self.params, self.kv = opened.model, shapes_of(params), layout.allocate(empty=lambda kv: kv)

    def text(self, function: Callable[..., Any], *arguments: Any, **constants: Any) -> str:
        program = jax.jit(partial(function, model=self.model, backends=self.backends, **constants))
        return program.lower(self.params, *arguments).as_text()

    def of_step(self, function: Callable[..., Any], **constants: Any) -> str:
        """A forward pass over a decode row and a tile."""
        batch = StepBatch.padding(StepShape(1, 1), 1, pages_per_block(32))
        return self.text(function, self.kv, Slots.zeros(1), batch, groups=None, **constants)

    def of_tile(self, function: Callable[..., Any], last: str) -> str:
        """What is made of the hidden states of a tile."""
        hidden = jax.ShapeDtypeStruct((TILE_SIZE, self.model.config.hidden_size), self.params["embedding"].dtype)
        return self.text(function, hidden, np.zeros(TILE_SIZE, np.int32), np.zeros(TILE_SIZE, last))

    def of_pictures(self) -> Iterator[str]:
        assert self.model.encoder is not None
        lowerings = picture_encoding.lowerings(self.params, self.kv, self.model.encoder, 128, self.backends)
        return (lower().as_text() for lower in lowerings.values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_of_steps_with_weights_of_any_type(tmp_path: Path, dtype: str) -> None:
    """Of bfloat16, a mixture has its routers in float32, because rounding would change the chosen experts."""
    lowered = Lowered(write_folder(tmp_path / "tiny", "mixtral"), dtype)
    texts = [lowered.of_step(forward), lowered.of_step(forward_prompt, max_num_tiles=1)]
    if dtype == "float32":
        texts += [lowered.of_tile(score_tile, "int32"), lowered.of_tile(pool_tile, "float32")]
    found = [products_of_float32(text) for text in texts]
    assert found[0]
    assert found[1]
    assert all(map(all, found))


def test_of_encoders_of_texts(tmp_path: Path) -> None:
    write_golden(tmp_path, GOLDENS["bert"])
    lowered = Lowered(tmp_path, "float32")
    batch, shares = StepBatch.padding(StepShape(0, 1), 1, pages_per_block(32)), np.zeros((2, 1, TILE_SIZE), np.float32)
    products = products_of_float32(lowered.text(encode, lowered.kv, batch, shares, np.int32(1), max_num_tiles=1))
    assert len(products) > 4
    assert all(products)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_of_encoders_of_pictures_where_nothing_may_be_rounded(tmp_path: Path, dtype: str) -> None:
    golden = json.loads((PICTURES / "smolvlm.json").read_text(encoding="utf-8"))
    lowered = Lowered(write_tiny_folder(tmp_path, golden), dtype)
    products = [product for text in lowered.of_pictures() for product in products_of_float32(text)]
    assert len(products) > 4
    assert all(product is (dtype == "float32") for product in products)
