"""Qwen3-VL with experts: both ways in which folders hold them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from engine.backends.xla.matrices import ArrayLayout
from engine.models.open_model import open_model
from engine.weights.layout import Precision
from tests.engine.models.same_model import assert_same_model
from tests.golden.architectures.tiny_weights import tiny_weights

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[3] / "golden" / "architectures" / "qwen3_vl_moe.json").read_text(encoding="utf-8")
)


def write(path: Path, *, is_turned: bool, inner: int = 96) -> Path:
    path.mkdir()
    config = {**GOLDEN["config"], "text_config": {**GOLDEN["config"]["text_config"], "moe_intermediate_size": inner}}
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    sizes = {96: inner, 192: 2 * inner}
    shapes = {
        name: [sizes.get(size, size) if ".experts." in name else size for size in shape]
        for name, shape in GOLDEN["shapes"].items()
    }
    tensors = tiny_weights(config["architectures"][0], shapes, GOLDEN["seed"])
    if is_turned:
        for name in [name for name in tensors if ".mlp.experts." in name]:
            tensors[name] = np.ascontiguousarray(tensors[name].swapaxes(1, 2))
    save_file(tensors, path / "model.safetensors")
    return path


def test_experts_are_the_same_whichever_way_they_lie(tmp_path: Path) -> None:
    folders = (write(tmp_path / str(is_turned), is_turned=is_turned) for is_turned in (True, False))
    assert_same_model(*folders, 128)


@pytest.mark.parametrize("inner", [32, 64])
def test_experts_whose_shape_fits_both_ways_are_as_transformers_saves_them(tmp_path: Path, inner: int) -> None:
    folder = write(tmp_path / "folder", is_turned=False, inner=inner)
    params = open_model(folder).load(ArrayLayout(), Precision("float32", None), lambda *step: None).params
    tensors = load_file(folder / "model.safetensors")
    before, hidden = "model.language_model.layers.1.mlp.experts.", GOLDEN["config"]["text_config"]["hidden_size"]
    gate_up, down = (tensors[f"{before}{name}_proj"] for name in ("gate_up", "down"))
    assert (gate_up.shape[1:], down.shape[1:]) == ((2 * inner, hidden), (hidden, inner))
    of_layer = slice(len(down), 2 * len(down))
    np.testing.assert_array_equal(params["gate_up"][of_layer], gate_up.swapaxes(1, 2))
    np.testing.assert_array_equal(params["down"][of_layer], down.swapaxes(1, 2))
