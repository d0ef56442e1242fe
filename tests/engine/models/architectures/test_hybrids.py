"""Qwen3-Next and Qwen3.5: other ways in which files hold them, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from engine.client import EngineClient
from engine.engine import Engine
from engine.interface.config import EngineConfig
from engine.interface.errors import ModelError
from engine.models.open_model import open_model
from tests.engine.models.same_model import assert_same_model
from tests.engine.models.twins.gguf_twins import write_gguf
from tests.golden.architectures.tiny_weights import tiny_weights

FOLDER = Path(__file__).parents[3] / "golden" / "architectures"


def golden(name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """`config.json` and the tensors."""
    content = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return content["config"], tiny_weights(content["config"]["architectures"][0], content["shapes"], content["seed"])


def write_folder(path: Path, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(dict(tensors), path / "model.safetensors")
    return path


def joined(tensors: Mapping[str, np.ndarray], num_experts: int) -> dict[str, np.ndarray]:
    """The gates and ups of a layer's experts in one tensor, the downs in another."""
    made = {name: values for name, values in tensors.items() if ".experts." not in name}
    layers = {name.split(".experts.")[0] for name in tensors if ".experts." in name}
    for layer in layers:
        gates, ups, downs = (
            np.stack([tensors[f"{layer}.experts.{i}.{kind}_proj.weight"] for i in range(num_experts)])
            for kind in ("gate", "up", "down")
        )
        made[f"{layer}.experts.gate_up_proj"] = np.concatenate([gates, ups], axis=1)
        made[f"{layer}.experts.down_proj"] = downs
    return made


@pytest.mark.parametrize("name", ["qwen3_next", "qwen3_5_moe", "qwen3_5_moe_pictures"])
def test_all_experts_of_a_layer_may_be_two_tensors(tmp_path: Path, name: str) -> None:
    config, tensors = golden(name)
    num_experts = config.get("text_config", config)["num_experts"]
    one = write_folder(tmp_path / "one", config, tensors)
    other = write_folder(tmp_path / "other", config, joined(tensors, num_experts))
    assert_same_model(one, other, 1 << 30)


def test_a_gguf_file_may_hold_gates_and_ups_of_experts_in_one_tensor(tmp_path: Path) -> None:
    config, tensors = golden("qwen3_5_moe")
    one = write_gguf(tmp_path / "one.gguf", config, tensors)
    stored = joined(tensors, config["num_experts"])
    stored = {f"{name}.weight" if ".experts." in name else name: values for name, values in stored.items()}
    other = write_gguf(tmp_path / "other.gguf", config, stored)
    assert_same_model(one, other, 1 << 30)


def test_a_gguf_file_of_an_early_converter_is_read(tmp_path: Path) -> None:
    config, tensors = golden("qwen3_next")
    folder = write_folder(tmp_path / "folder", config, tensors)
    assert_same_model(folder, write_gguf(tmp_path / "early.gguf", {**config, "is_early": True}, tensors), 1 << 30)


def test_the_head_that_predicts_several_tokens_is_left_alone(tmp_path: Path) -> None:
    config, tensors = golden("qwen3_5")
    folder = write_folder(tmp_path / "folder", config, tensors)
    ahead = {**tensors, "mtp.fc.weight": np.zeros((64, 128), np.float32)}
    assert_same_model(folder, write_folder(tmp_path / "ahead", config, ahead), 1 << 30)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"linear_num_value_heads": 3}, "3 heads of values cannot share 2 of keys"),
        ({"linear_num_key_heads": 0}, "linear_num_key_heads is 0; it must be an integer from 1"),
        ({"linear_key_head_dim": 2**31 - 1}, "at most 1048576 features of a token"),
        ({"linear_conv_kernel_dim": 1}, "convolutions of 2 to 64 are served"),
        ({"linear_value_head_dim": 64}, "has shape .*, expected"),
        ({"layer_types": ["linear_attention"] * 5}, "all layers are of one kind"),
        ({"layer_types": ["linear_attention"] * 4}, "layer_types is .*it must list 5 times"),
        ({"layer_types": ["sliding_attention"] * 5}, "layer_types is .*it must list 5 times"),
        ({"attention_bias": True}, "attention_bias is true; biases are not served"),
        ({"num_experts": 2**31 - 1}, "have 2147483647 experts each; at most 4096"),
        ({"shared_expert_intermediate_size": 0}, "shared_expert_intermediate_size is 0"),
        ({"mlp_only_layers": [1]}, "mlp_only_layers is .*layers without experts are not served"),
    ],
)
def test_impossible_configurations_are_refused_by_name(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    config, tensors = golden("qwen3_next")
    with pytest.raises(ModelError, match=message):
        open_model(write_folder(tmp_path / "folder", {**config, **changes}, tensors))


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    config, tensors = golden("qwen3_5")
    del tensors["model.layers.2.linear_attn.A_log"]
    with pytest.raises(ModelError, match=r"lacks the tensor 'model\.layers\.2\.linear_attn\.A_log'"):
        open_model(write_folder(tmp_path / "folder", config, tensors))


@pytest.mark.parametrize(
    ("setting", "value"),
    [("tensor_parallel", 2), ("decode_chunk", 4), ("prefix_cache_dir", "/nowhere")],
)
def test_settings_that_know_no_states_are_refused_by_name(tmp_path: Path, setting: str, value: Any) -> None:
    folder = write_folder(tmp_path / "folder", *golden("qwen3_5"))
    with pytest.raises(ValueError, match=f"{setting} is .*which a model with recurrent layers cannot have"):
        Engine.load(folder, EngineConfig(**{setting: value}), lambda stage, done, total: None)


def test_the_state_of_a_sequence_is_part_of_what_a_model_would_take(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder", *golden("qwen3_5"))
    found = EngineClient.footprint(folder, EngineConfig(dtype="float32"))
    assert found.state_bytes == 3 * (3 * 192 + 4 * 16 * 32) * 4
    assert found.kv_bytes_per_token == 2 * 2 * 2 * 32 * 4  # of two layers


def test_states_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder", *golden("qwen3_5"))
    with pytest.raises(ValueError, match="the states of 64 requests take"):
        Engine.load(folder, EngineConfig(kv_cache_bytes=1 << 20), lambda stage, done, total: None)
