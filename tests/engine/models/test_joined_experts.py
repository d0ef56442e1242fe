"""Folders that hold experts as transformers 5 does in memory: a layer's gates and ups, and its downs, in one tensor."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from engine.interface.errors import ModelError
from engine.models.open_model import open_model
from tests.engine.models.same_model import assert_same_model
from tests.engine.models.test_aliases import FOLDER, written
from tests.golden.architectures.tiny_weights import tiny_weights
from tests.thoroughness import some

# Those whose other tensors have the same names there.
NAMES = (
    "afmoe", "cohere2_moe", "deepseek_v2", "deepseek_v3", "deepseek_v32", "dots1", "glm4_moe", "glm4_moe_lite",
    "glm_dsa", "hunyuan_moe", "mellum", "olmoe", "qwen2_moe", "qwen3_moe", "solar_open",
)  # fmt: skip
OF_EXPERT = re.compile(r"(.*\.experts\.)(\d+)\.(gate|up|down)_proj\.weight")


def joined(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    made, of_layers = {}, defaultdict[str, dict[tuple[str, int], np.ndarray]](dict)
    for name, values in tensors.items():
        found = OF_EXPERT.fullmatch(name)
        if found is None:
            made[name] = values
        else:
            of_layers[found[1]][found[3], int(found[2])] = values
    for before, of_experts in of_layers.items():
        gate, up, down = (
            np.stack([of_experts[kind, expert] for expert in range(len(of_experts) // 3)])
            for kind in ("gate", "up", "down")
        )
        made |= {f"{before}gate_up_proj": np.concatenate([gate, up], axis=1), f"{before}down_proj": down}
    return made


@pytest.mark.parametrize("name", some(NAMES, 5))
def test_joined_experts_are_the_same(tmp_path: Path, name: str) -> None:
    golden = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    tensors = tiny_weights(golden["config"]["architectures"][0], golden["shapes"], golden["seed"])
    usual = written(tmp_path / "usual", golden["config"], tensors)
    assert_same_model(written(tmp_path / "joined", golden["config"], joined(tensors)), usual, 128)


def test_joined_experts_of_another_shape_are_refused(tmp_path: Path) -> None:
    golden = json.loads((FOLDER / "qwen3_moe.json").read_text(encoding="utf-8"))
    tensors = joined(tiny_weights("Qwen3MoeForCausalLM", golden["shapes"], golden["seed"]))
    name = "model.layers.1.mlp.experts.gate_up_proj"
    folder = written(tmp_path / "joined", golden["config"], tensors)
    save_file({**tensors, name: tensors[name][:-1]}, folder / "model.safetensors")
    with pytest.raises(ModelError, match=name):
        open_model(folder)
