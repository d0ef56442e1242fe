"""LFM2: what configurations say in old and new words, the states of its layers, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import save_file

from engine.interface.errors import ModelError
from engine.models.architectures.hybrids.lfm2 import Lfm2
from engine.models.open_model import open_model
from engine.weights.formats.model_folder import JsonFile
from tests.golden.architectures.tiny_weights import tiny_weights

FOLDER = Path(__file__).parents[4] / "golden" / "architectures"
SIZES: dict[str, Any] = {
    "vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}  # fmt: skip


def write_folder(path: Path, changes: dict[str, Any], *missing: str, name: str = "lfm2") -> Path:
    content = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    tensors = tiny_weights(content["config"]["architectures"][0], content["shapes"], content["seed"])
    path.mkdir()
    (path / "config.json").write_text(json.dumps({**content["config"], **changes}), encoding="utf-8")
    save_file({name: values for name, values in tensors.items() if name not in missing}, path / "model.safetensors")
    return path


def opened(**values: Any) -> Any:
    return Lfm2.from_folder(JsonFile(Path("config.json"), {**SIZES, **values}), frozenset()).config


def test_names_of_the_first_releases_say_the_same() -> None:
    old = opened(block_ff_dim=12288, full_attn_idxs=[1, 3], tie_embedding=True, norm_eps=1e-5)
    new = opened(intermediate_size=12288, layer_types=["conv", "full_attention"] * 2, tie_word_embeddings=True)
    assert old == new
    assert (new.intermediate_size, new.is_convolution, new.kernel) == (8192, (True, False, True, False), 3)
    assert opened(**{**SIZES, "intermediate_size": 96, "block_auto_adjust_ff_dim": False, "full_attn_idxs": [0]}) == (
        opened(intermediate_size=144, block_multiple_of=96, full_attn_idxs=[0])
    )


def test_a_sequence_holds_pages_and_the_last_inputs_of_convolutions() -> None:
    config = opened(intermediate_size=96, full_attn_idxs=[2], conv_L_cache=4)
    assert config.num_paged_layers == 1
    assert [(state.num_layers, state.shape) for state in config.states] == [(3, (3, 64))]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_attention_heads": 0}, "num_attention_heads is 0; it must be an integer from 1"),
        ({"conv_L_cache": 1}, "conv_L_cache is 1; it must be an integer from 2 to 64"),
        ({"conv_L_cache": 2**31 - 1}, "conv_L_cache is 2147483647; it must be an integer from 2 to 64"),
        ({"layer_types": ["conv"] * 5}, "all layers are of one kind"),
        ({"layer_types": ["conv"] * 4}, "layer_types is .*it must list 5 times"),
        ({"layer_types": None}, "full_attn_idxs is null; it, or layer_types, must list the layers with attention"),
        ({"block_multiple_of": 2**31}, "block_multiple_of is 2147483648"),
        ({"hidden_size": 128}, "has shape .*, expected"),
    ],
)
def test_impossible_configurations_are_refused_by_name(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        open_model(write_folder(tmp_path / "folder", changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_dense_layers": 5}, "num_dense_layers is 5; it must be below the 5 layers"),
        ({"num_experts": 2**31 - 1}, "have 2147483647 experts each; at most 4096"),
        ({"num_experts_per_tok": 7}, "a token cannot pick 7 of 6 experts"),
        ({"moe_intermediate_size": 64}, "has shape .*, expected"),
    ],
)
def test_impossible_experts_are_refused_by_name(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        open_model(write_folder(tmp_path / "folder", changes, name="lfm2_moe"))


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    name = "model.layers.2.conv.conv.weight"
    with pytest.raises(ModelError, match=f"lacks the tensor '{name}'"):
        open_model(write_folder(tmp_path / "folder", {}, name))
