"""OLMo Hybrid: the names of several releases, and what is refused."""

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

FOLDER = Path(__file__).parents[4] / "golden" / "architectures"


def golden() -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """`config.json` and the tensors."""
    content = json.loads((FOLDER / "olmo_hybrid.json").read_text(encoding="utf-8"))
    return content["config"], tiny_weights(content["config"]["architectures"][0], content["shapes"], content["seed"])


def write_folder(path: Path, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(tensors, path / "model.safetensors")
    return path


def test_norms_and_convolutions_have_the_names_of_other_releases_too(tmp_path: Path) -> None:
    config, tensors = golden()
    folder = write_folder(tmp_path / "folder", config, tensors)
    published, joined = {}, {}
    for name, values in tensors.items():
        is_attending = any(f"layers.{layer}." in name for layer in (1, 3))
        published[name.replace("feedforward_layer_norm", "post_attention_layernorm") if is_attending else name] = values
        if "_conv1d" not in name:
            name = name.replace("attention_layer_norm", "input_layernorm")
            joined[name.replace("feedforward_layer_norm", "post_attention_layernorm")] = values
    for layer in (0, 2, 4):
        before = f"model.layers.{layer}.linear_attn"
        parts = [tensors[f"{before}.{kind}_conv1d.weight"] for kind in "qkv"]
        joined[f"{before}.conv1d.weight"] = np.concatenate(parts)
    assert_same_model(folder, write_folder(tmp_path / "published", config, published), 1 << 30)
    assert_same_model(folder, write_folder(tmp_path / "joined", config, joined), 1 << 30)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_bias": True}, "attention_bias is true; biases are not served"),
        ({"layer_types": ["linear_attention"] * 5}, "all layers are of one kind"),
        ({"linear_num_value_heads": 5}, "5 heads of values cannot share 4 of keys"),
        ({"linear_conv_kernel_dim": 1}, "convolutions of 2 to 64 are served"),
        ({"linear_value_head_dim": 32}, "has shape .*, expected"),
    ],
)
def test_impossible_configurations_are_refused_by_name(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    config, tensors = golden()
    with pytest.raises(ModelError, match=message):
        open_model(write_folder(tmp_path / "folder", {**config, **changes}, tensors))
