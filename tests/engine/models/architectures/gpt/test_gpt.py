"""What configurations of GPT-2, GPT-NeoX, Falcon, BLOOM, MPT and Jais say, and what of it is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.backends.base.operands import Activation
from engine.interface.errors import ModelError
from engine.models.architectures.gpt.bloom import Bloom
from engine.models.architectures.gpt.falcon import Falcon
from engine.models.architectures.gpt.gpt2 import Gpt2
from engine.models.architectures.gpt.gpt_neox import GptNeoX
from engine.models.architectures.gpt.jais import Jais
from engine.models.architectures.gpt.mpt import Mpt
from engine.models.parts.model import Model
from engine.parallel.mesh import refuse_unsplittable
from engine.weights.formats.model_folder import JsonFile

GPT2 = {"vocab_size": 100, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}
BLOOM = {"vocab_size": 100, "n_embed": 64, "n_layer": 2, "n_head": 4}
MPT = {"vocab_size": 100, "d_model": 64, "n_layers": 2, "n_heads": 4}
SIZES = {
    "vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96,
    "max_position_embeddings": 128,
}  # fmt: skip


def opened(architecture: type[Model], values: dict[str, Any], *names: str) -> Any:
    return architecture.from_folder(JsonFile(Path("config.json"), values), frozenset(names))


def test_folders_of_gpt2_may_leave_a_prefix_out() -> None:
    first_names = {
        leaf.parts[0].stored["safetensors"].name.split(".")[0]
        for prefix in ("", "transformer.")
        for leaf in opened(Gpt2, GPT2, f"{prefix}wte.weight").leaves()
    }
    assert first_names == {"wte", "wpe", "h", "ln_f", "transformer"}
    assert opened(Gpt2, GPT2).leaves_out("h.0.attn.bias")
    assert opened(Gpt2, GPT2).config.intermediate_size == 256


def test_older_spellings_of_neox_mean_the_same() -> None:
    model = opened(GptNeoX, {**SIZES, "rotary_pct": 0.5, "rotary_emb_base": 500, "hidden_act": "gelu_fast"})
    rotary = {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}}
    assert model == opened(GptNeoX, {**SIZES, **rotary, "hidden_act": "gelu_new"})
    assert (model.config.activation, model.config.is_parallel) == (Activation.GELU_TANH, True)


@pytest.mark.parametrize(
    ("values", "num_kv_heads", "is_parallel", "has_two_norms"),
    [
        ({}, 1, True, False),
        ({"multi_query": False, "parallel_attn": False}, 4, False, False),
        ({"new_decoder_architecture": True, "num_kv_heads": 2}, 2, True, True),
        ({"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1}, 2, True, False),
    ],
)
def test_the_forms_of_falcon(values: dict[str, Any], num_kv_heads: int, is_parallel: bool, has_two_norms: bool) -> None:
    config = opened(Falcon, {**SIZES, **values}).config
    assert (config.num_kv_heads, config.is_parallel, config.has_two_norms) == (num_kv_heads, is_parallel, has_two_norms)
    assert config.intermediate_size == 256


def test_scores_fall_with_distance_by_slopes_of_each_head() -> None:
    """Falcon's biases are rounded and scaled as its scores are; MPT states the largest exponent."""
    slopes = (2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8)
    assert opened(Bloom, BLOOM).config.distance_slopes == slopes
    falcon = opened(Falcon, {**SIZES, "alibi": True}).config
    assert (falcon.distance_slopes, falcon.rounds_biases) == (slopes, True)
    steeper = {**MPT, "attn_config": {"alibi_bias_max": 16, "clip_qkv": None, "softmax_scale": None}}
    assert opened(Mpt, steeper).config.distance_slopes == tuple(slope**2 for slope in slopes)
    with pytest.raises(ValueError, match="tensor_parallel is 2, which a model with biases by distance"):
        refuse_unsplittable(opened(Bloom, BLOOM), 2)


def test_the_scales_of_jais_have_two_names() -> None:
    old = {"position_embedding_type": "alibi", "embeddings_scale": 14.6, "width_scale": 0.2, "scale_qk_dot_by_d": True}
    new = {
        "position_embedding_type": "alibi", "mup_embeddings_scale": 14.6, "mup_output_alpha": 2.0,
        "mup_width_scale": 0.1, "mup_scale_qk_dot_by_d": True,
    }  # fmt: skip
    model = opened(Jais, {**GPT2, **old})
    assert model == opened(Jais, {**GPT2, **new})
    assert (model.config.attention_scale, model.config.embedding_scale) == (1 / 16, 14.6)
    assert model.leaves_out("transformer.relative_pe.slopes")


@pytest.mark.parametrize(
    ("architecture", "values", "words"),
    [
        (Bloom, {**BLOOM, "apply_residual_connection_post_layernorm": True}, "residuals behind norms"),
        (Bloom, {**BLOOM, "n_head": 0}, "num_attention_heads is 0"),
        (Mpt, {**MPT, "attn_config": {"alibi": False}}, "alibi is false"),
        (Mpt, {**MPT, "attn_config": {"prefix_lm": True}}, "prefix_lm is true"),
        (Mpt, {**MPT, "no_bias": False}, "no_bias is false"),
        (Mpt, {**MPT, "expansion_ratio": 1 << 40}, "expansion_ratio is"),
        (Jais, {**GPT2, "position_embedding_type": "learned"}, 'position_embedding_type is "learned"'),
        (Gpt2, {**GPT2, "scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is true"),
        (Gpt2, {**GPT2, "add_cross_attention": True}, "add_cross_attention is true"),
        (Gpt2, {**GPT2, "n_embd": 0}, "n_embd is 0"),
        (Gpt2, {**GPT2, "activation_function": "relu"}, 'hidden_act is "relu"'),
        (GptNeoX, {**SIZES, "hidden_act": "relu"}, 'hidden_act is "relu"'),
    ],
)
def test_what_is_not_served_is_refused(architecture: type[Model], values: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        opened(architecture, values)
