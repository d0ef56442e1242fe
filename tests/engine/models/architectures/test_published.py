"""Configurations of models as they were published, of families that differ from their tiny ones in what they state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.backends.base.operands import Activation
from engine.interface.errors import ModelError
from engine.models.architectures.gpt.codeshell import CodeShell
from engine.models.architectures.gpt.gpt_neo import GptNeo
from engine.models.architectures.gpt.gptj import CodeGen, GptJ
from engine.models.architectures.gpt.opt import Opt
from engine.models.architectures.gpt.refact import Refact
from engine.models.architectures.hybrids.mamba import FalconMamba
from engine.models.architectures.latent.plm import Plm
from engine.models.architectures.llamas.biased import InternLM, InternLM3
from engine.models.architectures.llamas.chatglm import ChatGlm
from engine.models.architectures.llamas.openelm import OpenElm
from engine.models.architectures.mixtures.glm4_moe import SolarOpen
from engine.models.architectures.qwen2 import MiMo
from engine.models.architectures.shared_experts.laguna import Laguna
from engine.models.architectures.shared_experts.step35 import Step35
from engine.models.parts.model import Model
from engine.weights.formats.model_folder import JsonFile

OPT = {
    "_remove_final_layer_norm": False, "activation_function": "relu", "do_layer_norm_before": True, "ffn_dim": 3072,
    "hidden_size": 768, "max_position_embeddings": 2048, "model_type": "opt", "num_attention_heads": 12,
    "num_hidden_layers": 12, "vocab_size": 50272, "word_embed_proj_dim": 768,
}  # fmt: skip
GPT_NEO = {
    "attention_types": [[["global", "local"], 12]], "hidden_size": 2048, "num_heads": 16, "num_layers": 24,
    "intermediate_size": None, "max_position_embeddings": 2048, "window_size": 256, "vocab_size": 50257,
}  # fmt: skip
GPTJ = {
    "n_embd": 4096, "n_head": 16, "n_inner": None, "n_layer": 28, "n_positions": 2048, "rotary_dim": 64,
    "tie_word_embeddings": False, "vocab_size": 50400, "model_type": "gptj", "activation_function": "gelu_new",
}  # fmt: skip
CODESHELL = {
    "n_embd": 4096, "n_head": 32, "n_inner": 16384, "n_layer": 42, "n_positions": 8192, "num_query_groups": 8,
    "group_query_attention": True, "position_embedding_type": "rope", "vocab_size": 70144, "rope_scaling": None,
    "model_type": "codeshell", "tie_word_embeddings": False,
}  # fmt: skip
REFACT = {
    "n_embd": 2048, "n_head": 32, "n_layer": 32, "n_positions": 4096, "layer_norm_epsilon": 1e-5, "multi_query": True,
    "vocab_size": 49216, "model_type": "gpt_refact", "tie_word_embeddings": False,
}  # fmt: skip
CHATGLM = {
    "num_layers": 40, "padded_vocab_size": 151552, "hidden_size": 4096, "ffn_hidden_size": 13696, "kv_channels": 128,
    "num_attention_heads": 32, "seq_length": 131072, "layernorm_epsilon": 1.5625e-07, "rmsnorm": True,
    "multi_query_attention": True, "multi_query_group_num": 2, "add_qkv_bias": True, "add_bias_linear": False,
    "post_layer_norm": True, "original_rope": True, "rope_ratio": 500, "model_type": "chatglm",
}  # fmt: skip
MIMO = {
    "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 32768, "rope_theta": 640000,
    "vocab_size": 151680, "num_nextn_predict_layers": 1, "attention_bias": True, "model_type": "mimo",
}  # fmt: skip
INTERNLM = {
    "bias": True, "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "num_hidden_layers": 32,
    "max_position_embeddings": 2048, "vocab_size": 103168, "rms_norm_eps": 1e-6, "model_type": "internlm",
    "rotary": {"base": 10000, "type": "dynamic"},
}  # fmt: skip
INTERNLM3 = {
    "bias": False, "qkv_bias": False, "head_dim": 128, "hidden_size": 4096, "intermediate_size": 10240,
    "num_attention_heads": 32, "num_key_value_heads": 2, "num_hidden_layers": 48, "max_position_embeddings": 32768,
    "rope_scaling": {"factor": 6.0, "rope_type": "dynamic"}, "rope_theta": 50000000, "vocab_size": 128512,
    "model_type": "internlm3",
}  # fmt: skip
OPENELM = {
    "vocab_size": 32000, "model_dim": 1280, "num_transformer_layers": 16, "head_dim": 64, "num_gqa_groups": 4,
    "num_query_heads": [12] * 5 + [16] * 7 + [20] * 4, "num_kv_heads": [3] * 5 + [4] * 7 + [5] * 4,
    "ffn_multipliers": [
        0.5, 0.73, 0.97, 1.2, 1.43, 1.67, 1.9, 2.13, 2.37, 2.6, 2.83, 3.07, 3.3, 3.53, 3.77, 4.0,
    ],
    "ffn_dim_divisor": 256, "max_context_length": 2048, "rope_freq_constant": 10000, "rope_max_length": 4096,
    "share_input_output_layers": True, "ffn_with_glu": True, "normalize_qk_projections": True,
    "activation_fn_name": "swish", "normalization_layer_name": "rms_norm", "model_type": "openelm",
}  # fmt: skip
FALCON_MAMBA = {
    "hidden_size": 4096, "intermediate_size": 8192, "num_hidden_layers": 64, "state_size": 16, "conv_kernel": 4,
    "time_step_rank": 256, "expand": 16, "use_bias": False, "use_conv_bias": True, "vocab_size": 65024,
    "layer_norm_epsilon": 1e-5, "mixer_rms_eps": 1e-6, "model_type": "falcon_mamba", "tie_word_embeddings": False,
}  # fmt: skip
SOLAR = {
    "vocab_size": 196608, "hidden_size": 4096, "moe_intermediate_size": 1280, "num_hidden_layers": 48,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "num_experts_per_tok": 8,
    "n_routed_experts": 128, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0,
    "norm_topk_prob": True, "max_position_embeddings": 131072, "model_type": "solar_open", "rope_theta": 1000000,
}  # fmt: skip
PLM = {
    "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 32,
    "num_attention_heads": 16, "num_key_value_heads": 16, "kv_lora_rank": 512, "q_lora_rank": None,
    "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "hidden_act": "relu2",
    "max_position_embeddings": 4096, "rope_theta": 100000.0, "model_type": "plm",
}  # fmt: skip
LAGUNA = {
    "vocab_size": 100352, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 40,
    "num_attention_heads": 48, "num_attention_heads_per_layer": [48, 64, 64, 64] * 10, "num_key_value_heads": 8,
    "head_dim": 128, "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512, "moe_routed_scaling_factor": 2.5, "gating": True, "sliding_window": 512,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "sliding_attention"] * 10,
    "mlp_layer_types": ["dense"] + ["sparse"] * 39, "max_position_embeddings": 131072, "model_type": "laguna",
}  # fmt: skip
STEP = {
    "vocab_size": 128896, "hidden_size": 4096, "intermediate_size": 11264, "num_hidden_layers": 45,
    "num_attention_heads": 64, "num_attention_groups": 8, "head_dim": 128, "max_seq_len": 262144,
    "moe_num_experts": 288, "moe_top_k": 8, "moe_intermediate_size": 1280, "share_expert_dim": 1280,
    "moe_router_scaling_factor": 3.0, "moe_layers_enum": ",".join(map(str, range(3, 45))), "sliding_window": 512,
    "attention_other_setting": {"num_attention_heads": 96, "num_attention_groups": 8, "head_dim": 128},
    "layer_types": (["full_attention"] + ["sliding_attention"] * 3) * 12,
    "rope_theta": [5000000.0, 10000.0, 10000.0, 10000.0] * 12, "partial_rotary_factors": [0.5, 1.0, 1.0, 1.0] * 12,
    "rope_scaling": {
        "rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 32.0,
        "original_max_position_embeddings": 131072,
    },
    "yarn_only_types": ["full_attention"], "num_nextn_predict_layers": 3, "model_type": "step3p5",
    "swiglu_limits": [0.0] * 43 + [7.0, 7.0, 0.0, 0.0, 0.0], "swiglu_limits_shared": [0.0] * 44 + [16.0] + [0.0] * 3,
}  # fmt: skip


def opened(architecture: type[Model], values: dict[str, Any], *names: str) -> Any:
    return architecture.from_folder(JsonFile(Path("config.json"), values), frozenset(names))


@pytest.mark.parametrize(
    ("architecture", "values", "expected"),
    [
        (Opt, OPT, {"intermediate_size": 3072, "activation": Activation.RELU, "has_output": False}),
        (Opt, {**OPT, "activation_function": "gelu", "enable_bias": False}, {"has_mlp_bias": False}),
        (GptNeo, GPT_NEO, {"intermediate_size": 8192, "windows": (0, 256) * 12, "attention_scale": 1.0}),
        (GptJ, GPTJ, {"intermediate_size": 16384, "head_dim": 256, "is_parallel": True}),
        (CodeGen, {**GPTJ, "model_type": "codegen", "rotary_dim": 32}, {"num_kv_heads": 16}),
        (CodeShell, CODESHELL, {"num_kv_heads": 8, "head_dim": 128}),
        (Refact, REFACT, {"num_kv_heads": 1, "intermediate_size": 5632}),
        (ChatGlm, CHATGLM, {"num_kv_heads": 2, "vocab_size": 151552, "has_qkv_bias": True}),
        (MiMo, MIMO, {"has_qkv_bias": True, "has_attention_output_bias": False}),
        (InternLM, INTERNLM, {"has_qkv_bias": True, "has_attention_output_bias": True, "has_mlp_bias": False}),
        (InternLM3, INTERNLM3, {"has_qkv_bias": False, "context_length": 32768}),
        (OpenElm, OPENELM, {"num_kv_heads": 5, "num_heads": 20, "intermediate_size": 5120}),
        (FalconMamba, FALCON_MAMBA, {"num_layers": 64}),
        (SolarOpen, SOLAR, {"shared_size": 1280, "dense_layers": ()}),
        (Plm, PLM, {"head_dim": 576, "num_kv_heads": 1, "has_output": False}),
        (Step35, STEP, {"num_local_heads": 96, "num_heads": 64, "dense_layers": (0, 1, 2), "share_scale": 3.0}),
        (Laguna, LAGUNA, {"num_local_heads": 64, "dense_layers": (0,), "shared_size": 512, "share_scale": 2.5}),
    ],
)
def test_published_configurations_are_read(
    architecture: type[Model], values: dict[str, Any], expected: dict[str, Any]
) -> None:
    config = opened(architecture, values).config
    assert {key: getattr(config, key) for key in expected} == expected


def test_rotations_of_published_models() -> None:
    assert opened(ChatGlm, CHATGLM).config.rotary[0].frequencies[1] == pytest.approx(5e6 ** (-1 / 32), rel=1e-6)
    full, local = opened(Laguna, LAGUNA).config.rotary
    assert (full.rotary_dim, local.rotary_dim) == (64, 128)
    assert opened(GptJ, GPTJ).config.rotary[0].rotary_dim == 64
    full, local = opened(Step35, STEP).config.rotary
    assert (full.rotary_dim, local.rotary_dim) == (64, 128)
    assert full.frequencies[-1] == pytest.approx(5e6 ** (-62 / 64) / 2, rel=1e-6)
    assert opened(FalconMamba, FALCON_MAMBA).config.mamba.value_size == 8192


def test_blocks_of_openelm_grow_in_steps_of_a_divisor() -> None:
    sizes = [layer.feed_size for layer in opened(OpenElm, OPENELM).config.layers]
    assert sizes[:6] == [768, 1024, 1280, 1536, 1792, 2048]
    assert sizes[-1] == 5120


@pytest.mark.parametrize(
    ("architecture", "values", "message"),
    [
        (Opt, {**OPT, "do_layer_norm_before": False}, "do_layer_norm_before is false"),
        (Opt, {**OPT, "word_embed_proj_dim": 512}, "word_embed_proj_dim is 512"),
        (Opt, {**OPT, "layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine is false"),
        (GptNeo, {**GPT_NEO, "attention_types": [[["global"], 1 << 31]]}, "attention_types is .*; it must list pairs"),
        (GptNeo, {**GPT_NEO, "attention_types": 12}, "attention_types is 12; it must list pairs"),
        (GptNeo, {**GPT_NEO, "attention_types": [[["global", "far"], 12]]}, "attention_types is .*make 24 layers"),
        (GptNeo, {**GPT_NEO, "attention_layers": ["global"]}, "attention_layers is .*make 24 layers"),
        (GptJ, {**GPTJ, "rotary_dim": 257}, "rotary_dim is 257; it must be an integer from 2 to 256"),
        (GptJ, {**GPTJ, "tie_word_embeddings": True}, "tie_word_embeddings is true"),
        (CodeGen, {**GPTJ, "model_type": "codegen", "n_head": 2}, "n_head is 2; it must be a multiple of 4"),
        (CodeShell, {**CODESHELL, "position_embedding_type": "alibi"}, 'it must be "rope"'),
        (CodeShell, {**CODESHELL, "num_query_groups": 5}, "num_key_value_heads is 5; it must divide"),
        (Refact, {**REFACT, "multi_query": False}, "multi_query is false"),
        (ChatGlm, {**CHATGLM, "rmsnorm": False}, "rmsnorm is false; of this architecture it must be true"),
        (ChatGlm, {**CHATGLM, "add_bias_linear": True}, "add_bias_linear is true; .* must be false"),
        (OpenElm, {**OPENELM, "num_query_heads": [12]}, "num_query_heads is .*; it must list the heads of 16 layers"),
        (OpenElm, {**OPENELM, "num_kv_heads": [5] * 16}, "in each layer 4 heads of queries must share each"),
        (OpenElm, {**OPENELM, "ffn_multipliers": [1e300] * 16}, "ffn_multipliers is .*, and at most 1024"),
        (OpenElm, {**OPENELM, "ffn_with_glu": False}, "ffn_with_glu is false"),
        (Plm, {**PLM, "hidden_act": "silu"}, 'hidden_act is "silu"; of this architecture it must be "relu2"'),
        (Step35, {**STEP, "swiglu_limits": [-1.0] * 45}, "swiglu_limits is .*; each must be null or a number"),
        (Step35, {**STEP, "swiglu_limits": [7.0]}, "swiglu_limits is .*; it must be a list for 45 layers"),
        (Step35, {**STEP, "swiglu_limits_shared": [1.0] * 45}, "limits .* in layers without experts are not served"),
        (Step35, {**STEP, "moe_layers_enum": "3,x"}, "moe_layers_enum is .*; it must list layers"),
        (Step35, {**STEP, "moe_layers_enum": "9" * 5000}, "moe_layers_enum is .*; it must list layers"),
        (Step35, {**STEP, "moe_layers_enum": ""}, "moe_layers_enum is .*; it must list layers"),
        (Step35, {**STEP, "rope_theta": [1e4, 1e4, 1e5] * 15}, "must rotate alike"),
        (Step35, {**STEP, "use_head_wise_attn_gate": False}, "use_head_wise_attn_gate is false"),
        (Laguna, {**LAGUNA, "gating": False}, 'gating is false; it must be true, "per-head" or "per-element"'),
        (Laguna, {**LAGUNA, "moe_router_logit_softcapping": 30.0}, "moe_router_logit_softcapping is 30"),
        (Laguna, {**LAGUNA, "num_attention_heads_per_layer": [48] * 39 + [64]}, "layers of one kind must have the"),
        (Laguna, {**LAGUNA, "num_attention_heads_per_layer": [48, 63, 63, 63] * 10}, "63 heads cannot share 8 heads"),
        (Laguna, {**LAGUNA, "num_attention_heads_per_layer": [56, 64, 64, 64] * 10}, "layers that see all must have"),
    ],
)
def test_what_is_not_served_is_refused_by_name(architecture: type[Model], values: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        opened(architecture, values)
