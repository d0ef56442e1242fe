"""What configurations of Gemma say, in the forms that releases of transformers wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.interface.errors import ModelError
from engine.models.architectures.gemma2 import Gemma2
from engine.models.architectures.gemma3 import Gemma3
from engine.models.architectures.seeing.gemma4 import SeeingGemma4 as Gemma4
from engine.models.parts import rotary
from engine.models.parts.model import Model
from engine.parallel.mesh import refuse_unsplittable
from engine.weights.formats.model_folder import JsonFile

SIZES = {
    "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 7, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 512,
}  # fmt: skip


GEMMA4 = {**SIZES, "vocab_size_per_layer_input": 100, "hidden_size_per_layer_input": 32, "global_head_dim": 48}

GEMMA4_EXPERTS = {**GEMMA4, "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32}


def opened(architecture: type[Model], values: dict[str, Any], *names: str) -> Any:
    return architecture.from_folder(JsonFile(Path("config.json"), values), frozenset(names))


def test_gemma3_rotates_as_before_and_since_transformers_5() -> None:
    before = {
        **SIZES, "rope_theta": 5000.0, "rope_local_base_freq": 500.0, "sliding_window": 24,
        "sliding_window_pattern": 3, "rope_scaling": {"rope_type": "linear", "factor": 4.0},
    }  # fmt: skip
    local, everything = "sliding_attention", "full_attention"
    since = {
        **SIZES, "sliding_window": 24, "layer_types": [local, local, everything, local, local, everything, local],
        "rope_parameters": {
            everything: {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0},
            local: {"rope_type": "default", "rope_theta": 500.0},
        },
    }  # fmt: skip
    model = opened(Gemma3, before)
    assert model == opened(Gemma3, since)
    assert model.config.windows == (24, 24, 0, 24, 24, 0, 24)
    assert model.config.tables == (1, 1, 0, 1, 1, 0, 1)
    assert model.config.rotary == (rotary.divided(32, 5000.0, 4.0), rotary.plain(32, 500.0))


def test_gemma3_with_pictures_leaves_most_of_its_text_to_defaults() -> None:
    text = {
        "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "model_type": "gemma3_text",
    }  # fmt: skip
    model = opened(Gemma3, {"text_config": text}, "language_model.model.embed_tokens.weight")
    config = model.config
    assert (config.num_heads, config.num_kv_heads, config.head_dim, config.vocab_size) == (8, 4, 256, 262_208)
    assert (config.attention_scale, config.embedding_scale, config.has_output) == (1 / 16, 2560**0.5, False)
    assert config.windows[:6] == (1024,) * 5 + (0,)
    assert config.rotary == (rotary.divided(256, 1_000_000.0, 8.0), rotary.plain(256, 10_000.0))
    names = {part.stored["safetensors"].name for leaf in model.leaves() for part in leaf.parts}
    assert "language_model.model.layers.{layer}.self_attn.q_norm.weight" in names
    assert all(name.startswith("language_model.model.") for name in names)
    assert model.derived_tensors.fullmatch("vision_tower.vision_model.embeddings.patch_embedding.weight")


def test_gemma2_caps_scores_and_logits_unless_the_configuration_says_null() -> None:
    config = opened(Gemma2, SIZES).config
    assert (config.attention_softcap, config.logit_softcap) == (50.0, 30.0)
    assert config.windows == (4096, 0, 4096, 0, 4096, 0, 4096)
    uncapped = opened(Gemma2, {**SIZES, "attn_logit_softcapping": None, "final_logit_softcapping": None}).config
    assert (uncapped.attention_softcap, uncapped.logit_softcap) == (0.0, 0.0)


def test_gemma4_states_larger_heads_in_either_way() -> None:
    values = {**GEMMA4, "attention_k_eq_v": True, "num_global_key_value_heads": 1}
    heads = {"head_dim": 48, "num_key_value_heads": 1}
    since = {**GEMMA4, "attention_k_eq_v": True, "per_layer_config": {"05": heads, "06": heads}}
    model = opened(Gemma4, values)
    assert model == opened(Gemma4, since)
    assert opened(Gemma4, {**GEMMA4, "per_layer_config": {}}) == opened(Gemma4, {**GEMMA4, "global_head_dim": 32})
    config = model.config
    assert (config.head_dim, config.num_kv_heads, config.full.num_kv_heads) == (48, 2, 1)
    assert config.windows == (512,) * 5 + (0, 0)


def test_layers_of_gemma4_that_share_keys_and_values_have_no_pages() -> None:
    kinds = ["sliding_attention", "full_attention"] * 3 + ["full_attention"]
    model = opened(Gemma4, {**GEMMA4, "num_kv_shared_layers": 4, "use_double_wide_mlp": True, "layer_types": kinds})
    assert model.config.kv_layout(7, 16, "bfloat16").shape == (3, 7, 2, 2, 16, 48)
    assert (model.config.windows, model.config.wide_size) == ((512, 0, 512), 192)
    assert model.leaves_out("model.layers.3.self_attn.k_proj.weight")
    assert not model.leaves_out("model.layers.2.self_attn.k_proj.weight")


def test_gemma4_is_not_split_over_devices() -> None:
    with pytest.raises(ValueError, match="tensor_parallel is 2, which this architecture cannot be split over"):
        refuse_unsplittable(opened(Gemma4, GEMMA4), 2)


@pytest.mark.parametrize(
    ("architecture", "values", "message"),
    [
        (Gemma3, {**SIZES, "use_bidirectional_attention": True}, "use_bidirectional_attention is true"),
        (Gemma3, {**SIZES, "attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0"),
        (Gemma3, {**SIZES, "hidden_activation": "relu"}, 'hidden_activation is "relu"'),
        (Gemma3, {**SIZES, "layer_types": ["full_attention"]}, "it must list 7 times"),
        (Gemma3, {**SIZES, "rope_parameters": {"full_attention": {}}}, "lacks sliding_attention"),
        (Gemma4, {**GEMMA4, "enable_moe_block": True}, "lacks num_experts"),
        (Gemma4, {**GEMMA4_EXPERTS, "top_k_experts": 5}, "a token cannot pick 5 of 4 experts"),
        (Gemma4, {**GEMMA4_EXPERTS, "num_experts": (1 << 31) - 1}, "2147483647 experts each; at most 4096 are served"),
        (Gemma4, {**GEMMA4, "attention_bias": True}, "attention_bias is true; biases are not served"),
        (Gemma4, {**GEMMA4, "use_bidirectional_attention": "all"}, 'use_bidirectional_attention is "all"'),
        (
            Gemma4,
            {**GEMMA4, "num_kv_shared_layers": 7},
            "7 of 7 layers share keys and values that no other",
        ),
        (
            Gemma4,
            {**GEMMA4, "num_kv_shared_layers": 2},
            "2 of 7 layers share keys and values that no other",
        ),
        (Gemma4, {**GEMMA4, "layer_types": ["full_attention"]}, "it must list 7 times"),
        (
            Gemma4,
            {**GEMMA4, "vocab_size_per_layer_input": 50},
            "vocab_size_per_layer_input is 50; it must be",
        ),
        (Gemma4, {**GEMMA4, "global_head_dim": 1 << 20}, "the head dimension is 1048576; it must be even, at most"),
        (
            Gemma4,
            {**GEMMA4, "per_layer_config": {"5": {"head_dim": 48}}},
            "6 is null; layers of a kind must have heads alike",
        ),
        (
            Gemma4,
            {**GEMMA4, "per_layer_config": {"0": {"head_dim": 48}}},
            "0 is .*; layers of a kind must have heads alike",
        ),
        (
            Gemma4,
            {**GEMMA4, "per_layer_config": {"3": {"intermediate_size": 48}}},
            "3 is .*; layers with 'intermediate_size' of their own",
        ),
        (Gemma4, {**GEMMA4, "global_head_dim": 47}, "the head dimension is 47; it must be even"),
        (
            Gemma4,
            {**GEMMA4, "num_global_key_value_heads": 3, "attention_k_eq_v": True},
            "4 heads cannot share 3 heads of keys evenly",
        ),
    ],
)
def test_what_is_not_served_is_refused(architecture: type[Model], values: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        opened(architecture, values)
