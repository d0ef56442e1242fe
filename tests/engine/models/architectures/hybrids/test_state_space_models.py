"""What configurations of models with state spaces say, and what of it is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from engine.backends.native.backend import products_unsupported_reason
from engine.client import EngineClient
from engine.engine import Engine
from engine.interface.config import EngineConfig
from engine.interface.errors import ModelError
from engine.models.open_model import open_model
from engine.models.parts.hybrids.hybrid_config import HybridConfig
from engine.models.parts.hybrids.layers import Run, runs_of
from tests.engine.models.twins.gguf_twins import write_gguf
from tests.golden.architectures.tiny_weights import tiny_weights

FOLDER = Path(__file__).parents[4] / "golden" / "architectures"


def golden(name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """`config.json` and the tensors."""
    content = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return content["config"], tiny_weights(content["config"]["architectures"][0], content["shapes"], content["seed"])


def write_folder(path: Path, name: str, changes: dict[str, Any], *, without: str = "") -> Path:
    config, tensors = golden(name)
    path.mkdir()
    (path / "config.json").write_text(json.dumps({**config, **changes}), encoding="utf-8")
    save_file({key: tensor for key, tensor in tensors.items() if key != without}, path / "model.safetensors")
    return path


def test_states_of_jamba_that_native_norms_do_not_take_leave_the_products_to_xla(tmp_path: Path) -> None:
    config = open_model(write_folder(tmp_path / "folder", "jamba", {})).config
    assert isinstance(config, HybridConfig)
    assert products_unsupported_reason(config) is None
    odd = replace(config, mamba=replace(config.mamba, state_size=8))
    assert str(products_unsupported_reason(odd)).endswith("states 8")


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("granite_hybrid", {"mamba_n_heads": 0}, "mamba_n_heads is 0; it must be an integer from 1"),
        ("granite_hybrid", {"mamba_n_heads": 5}, "5 heads of a state space of 32 features are no 128 values"),
        ("granite_hybrid", {"mamba_n_groups": 3}, "4 heads cannot share 3 groups evenly"),
        ("granite_hybrid", {"mamba_d_state": 2**31 - 1}, "at most 1048576 features of a token"),
        ("granite_hybrid", {"mamba_d_conv": 1}, "convolutions of 2 to 64 are served"),
        ("granite_hybrid", {"mamba_d_conv": 2**31 - 1}, "convolutions of 2 to 64 are served"),
        ("granite_hybrid", {"layer_types": ["mamba"] * 4}, "layer_types is .*it must list 5 layers"),
        ("granite_hybrid", {"layer_types": [7] * 5}, "layer_types is .*it must list for each layer one of"),
        ("nemotron_h", {"layers_block_type": ["mlp", "full_attention"]}, "no layer has a state space"),
        ("nemotron_h_moe", {"layers_block_type": ["moe", "full_attention"]}, "no layer has a state space"),
        ("nemotron_h_moe", {"num_experts_per_tok": 7}, "a token cannot pick 7 of 6 experts"),
        ("nemotron_h_moe", {"moe_shared_expert_intermediate_size": 0}, "moe_shared_expert_intermediate_size is 0"),
        ("nemotron_h_moe_latent", {"moe_latent_size": 0}, "moe_latent_size is 0; it must be an integer from 1"),
        ("nemotron_h_moe_latent", {"moe_latent_size": 48}, "has shape .*, expected"),
        ("granite_hybrid", {"num_local_experts": 2**31 - 1}, "have 2147483647 experts each; at most 4096"),
        ("granite_hybrid", {"num_experts_per_tok": 7}, "a token cannot pick 7 of 6 experts"),
        (
            "granite_hybrid",
            {"position_embedding_type": "alibi"},
            'position_embedding_type is .*must be "rope" or "nope"',
        ),
        ("granite_hybrid", {"time_step_limit": [0.1]}, "time_step_limit is .*it must be two numbers"),
        ("granite_hybrid", {"time_step_limit": [0.2, 0.1]}, "time_step_limit is .*the first not above the second"),
        ("granite_hybrid", {"shared_intermediate_size": 32}, "has shape .*, expected"),
        ("falcon_h1", {"projectors_bias": True}, "projectors_bias is true; biases are not served"),
        ("falcon_h1", {"ssm_multipliers": [1.0, 1.0]}, "ssm_multipliers is .*it must be 5 numbers"),
        ("falcon_h1", {"mlp_multipliers": "big"}, "mlp_multipliers is .*it must be 2 numbers"),
        ("falcon_h1", {"mamba_d_ssm": 100}, "4 heads of a state space of 32 features are no 100 values"),
        ("nemotron_h", {"layers_block_type": ["linear_attention", "conv"]}, "layers_block_type is .*one of"),
        ("nemotron_h", {"layers_block_type": []}, "layers_block_type is .*one of"),
        ("nemotron_h", {"mlp_hidden_act": "silu"}, 'mlp_hidden_act is .*must be "relu2"'),
        ("nemotron_h", {"mlp_bias": True}, "mlp_bias is true; biases are not served"),
        ("mamba2", {"num_hidden_layers": 2**31 - 1}, "num_hidden_layers is 2147483647"),
        ("mamba2", {"head_dim": 16}, "4 heads of a state space of 16 features are no 128 values"),
        ("mamba2", {"state_size": 32}, "has shape .*, expected"),
        ("jamba", {"attn_layer_offset": 3}, "attn_layer_offset is 3; it must be below attn_layer_period"),
        ("jamba", {"num_experts": 2**31 - 1}, "have 2147483647 experts each; at most 4096"),
        ("jamba", {"mamba_dt_rank": 2**31 - 1}, "at most 1048576 features of a token"),
    ],
)
def test_impossible_configurations_are_refused_by_name(
    tmp_path: Path, name: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        open_model(write_folder(tmp_path / "folder", name, changes))


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("granite_hybrid", "model.layers.2.mamba.A_log"),
        ("mamba2", "backbone.layers.1.mixer.conv1d.bias"),
        ("jamba", "model.layers.0.mamba.b_layernorm.weight"),
    ],
)
def test_a_missing_tensor_is_named(tmp_path: Path, name: str, tensor: str) -> None:
    with pytest.raises(ModelError, match=f"lacks the tensor '{tensor}'"):
        open_model(write_folder(tmp_path / "folder", name, {}, without=tensor))


def test_layers_have_the_names_of_old_releases_too(tmp_path: Path) -> None:
    names = {"linear_attention": "mamba", "full_attention": "attention"}
    kinds = [names[kind] for kind in golden("granite_hybrid")[0]["layer_types"]]
    changed = {"layer_types": kinds, "position_embedding_type": "nope", "time_step_limit": [0.0, math.inf]}
    one, other = (
        open_model(write_folder(tmp_path / each, "granite_hybrid", changes)).config
        for each, changes in (("new", {}), ("old", changed))
    )
    assert one == other
    pattern = {"layers_block_type": None, "hybrid_override_pattern": "M-M-M*-"}
    one, other = (
        open_model(write_folder(tmp_path / each, "nemotron_h", changes)).config
        for each, changes in (("list", {}), ("letters", pattern))
    )
    assert one == other


@pytest.mark.parametrize("name", ["granite_hybrid_dense", "falcon_h1_norm_first"])
def test_a_gguf_file_that_does_not_say_all_is_read(tmp_path: Path, name: str) -> None:
    file = open_model(write_gguf(tmp_path / "tiny.gguf", *golden(name)))
    folder = open_model(write_folder(tmp_path / "folder", name, {}))
    assert file.config.states == folder.config.states
    assert file.config.num_paged_layers == folder.config.num_paged_layers


def test_states_and_pages_are_those_of_their_layers(tmp_path: Path) -> None:
    hybrid = EngineClient.footprint(
        write_folder(tmp_path / "hybrid", "granite_hybrid", {}), EngineConfig(dtype="float32")
    )
    assert hybrid.state_bytes == 3 * (3 * 192 + 4 * 16 * 32) * 4
    alone = EngineClient.footprint(write_folder(tmp_path / "alone", "mamba2", {}), EngineConfig(dtype="float32"))
    assert (alone.kv_bytes_per_token, alone.context_length) == (0, 1 << 17)


def test_states_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder", "mamba2", {})
    with pytest.raises(ValueError, match="the states of 64 requests take"):
        Engine.load(folder, EngineConfig(kv_cache_bytes=1 << 20), lambda stage, done, total: None)


def test_layers_of_a_pattern_are_one_loop() -> None:
    assert runs_of("MMMMM") == [Run(0, 1, 5)]
    assert runs_of("MMA" * 3 + "M") == [Run(0, 3, 3), Run(9, 1, 1)]
    assert runs_of("AMAMMMMB") == [Run(0, 2, 2), Run(4, 1, 3), Run(7, 1, 1)]
