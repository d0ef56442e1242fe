"""What the layers of DeciLM and Nemotron NAS may be, and what is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.interface.errors import ModelError
from engine.models.architectures.llamas.deci import Deci, DeciLayer
from engine.weights.formats.model_folder import JsonFile

SIZES: dict[str, Any] = {
    "vocab_size": 100, "hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 512,
    "num_hidden_layers": 2,
}  # fmt: skip
USUAL: dict[str, Any] = {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 3.0}}


def read(**changes: Any) -> Deci:
    return Deci.from_folder(JsonFile(Path("config.json"), {**SIZES, **changes}), frozenset())


def with_block(**changes: Any) -> dict[str, Any]:
    return {"block_configs": [USUAL, {**USUAL, **changes}]}


def test_blocks_of_a_list_have_sizes_of_their_own() -> None:
    nothing = {"attention": {"n_heads_in_group": None, "no_op": True}, "ffn": {"ffn_mult": None, "no_op": True}}
    read_layers = read(**with_block(**nothing)).config.layers
    assert read_layers == (DeciLayer(2, False, 256), DeciLayer(0, False, 0))
    matrix = {"n_heads_in_group": None, "replace_with_linear": True}
    model = read(**with_block(attention=matrix, ffn={"ffn_mult": 6.1}))
    assert model.config.layers[1] == DeciLayer(0, True, 512)
    assert model.config.num_paged_layers == 1
    by_name = {leaf.name: leaf.layers for leaf in model.leaves()}
    assert (by_name["qkv"], by_name["linear"]) == ((0,), (1,))
    assert (by_name["down_256"], by_name["down_512"]) == ((0,), (1,))


def test_the_first_models_list_their_heads_of_keys_alone() -> None:
    model = read(num_key_value_heads_per_layer=[1, 4], intermediate_size=96, model_type="deci")
    assert model.config.layers == (DeciLayer(1, False, 96), DeciLayer(4, False, 96))
    assert model.config.num_kv_heads == 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"block_configs": [USUAL]}, "block_configs is .*; it must list 2 layers"),
        ({"block_configs": [USUAL, None]}, 'each layer must have an object for "attention" and one for "ffn"'),
        (with_block(attention={"n_heads_in_group": 3}), "n_heads_in_group must divide the 4 heads"),
        (with_block(attention={"n_heads_in_group": True}), "n_heads_in_group must divide"),
        (
            with_block(attention={"n_heads_in_group": 2, "window_length": 64}),
            "window_length of attention is not served",
        ),
        (with_block(ffn={"ffn_mult": 1e300}), "ffn_mult must be a number above 0"),
        (with_block(ffn={"ffn_mult": "3"}), "ffn_mult must be a number above 0"),
        (with_block(ffn={"ffn_mult": 0.001}), "ffn_mult is too small"),
        (with_block(ffn={"ffn_mult": 3.0, "replace_with_linear": True}), "replace_with_linear of ffn is not served"),
        ({"block_configs": [{**USUAL, "attention": {}}] * 2}, "no layer attends"),
        ({"num_key_value_heads_per_layer": [3, 4], "intermediate_size": 96}, "each must divide num_attention_heads"),
        ({**with_block(), "model_type": "llama"}, 'of this architecture it must be "nemotron-nas"'),
        ({**with_block(), "mlp_bias": True}, "biases of feed-forward blocks are not served"),
    ],
)
def test_what_is_not_computed_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        read(**changes)
