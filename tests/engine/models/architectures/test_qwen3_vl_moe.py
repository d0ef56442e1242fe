"""Qwen3-VL with experts: both ways in which folders hold them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from engine.interface.errors import ModelError
from engine.models.open_model import open_model
from tests.engine.models.same_model import assert_same_model
from tests.golden.architectures.tiny_weights import tiny_weights

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[3] / "golden" / "architectures" / "qwen3_vl_moe.json").read_text(encoding="utf-8")
)


def write(path: Path, *, is_turned: bool, inner: int = 96) -> Path:
    path.mkdir()
    config = {**GOLDEN["config"], "text_config": {**GOLDEN["config"]["text_config"], "moe_intermediate_size": inner}}
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tensors = tiny_weights(config["architectures"][0], GOLDEN["shapes"], GOLDEN["seed"])
    if is_turned:
        for name in [name for name in tensors if ".mlp.experts." in name]:
            tensors[name] = np.ascontiguousarray(tensors[name].swapaxes(1, 2))
    save_file(tensors, path / "model.safetensors")
    return path


def test_experts_are_the_same_whichever_way_they_lie(tmp_path: Path) -> None:
    folders = (write(tmp_path / str(is_turned), is_turned=is_turned) for is_turned in (True, False))
    assert_same_model(*folders, 128)


@pytest.mark.parametrize("inner", [32, 64])
def test_experts_whose_shape_does_not_tell_are_refused(tmp_path: Path, inner: int) -> None:
    with pytest.raises(ModelError, match="moe_intermediate_size"):
        open_model(write(tmp_path / "folder", is_turned=False, inner=inner))
