"""What configurations of Llama 4, EXAONE, GLM-4, MiniCPM, Trinity and Gemma 3n say, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.interface.errors import ModelError
from engine.models.architectures.afmoe import Afmoe
from engine.models.architectures.gemma4.gemma3n import Gemma3n
from engine.models.architectures.llamas.exaone import Exaone
from engine.models.architectures.llamas.glm import Glm
from engine.models.architectures.llamas.llama4 import Llama4
from engine.models.architectures.llamas.minicpm import MiniCpm
from engine.models.architectures.llamas.nanbeige import Nanbeige
from engine.models.architectures.llamas.qwen import Qwen
from engine.models.open_model import open_model
from engine.models.parts.model import Model
from engine.weights.formats.model_folder import JsonFile
from tests.engine.models.twins.gguf_twins import write_gguf
from tests.golden.architectures.tiny_weights import tiny_weights

SIZES = {
    "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512,
}  # fmt: skip
LLAMA4 = {**SIZES, "intermediate_size_mlp": 128, "num_local_experts": 4, "interleave_moe_layer_step": 2}
GEMMA3N = {
    **SIZES, "vocab_size_per_layer_input": 90, "hidden_size_per_layer_input": 32, "num_kv_shared_layers": 1,
    "rope_theta": 5000.0, "rope_local_base_freq": 500.0, "activation_sparsity_pattern": [0.95, 0.95, 0, 0, 0, 0],
}  # fmt: skip
AFMOE = {**SIZES, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "mup_enabled": True}
MINICPM = {
    **SIZES, "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 32, "rope_scaling": None,
}  # fmt: skip
LONGROPE = {
    "rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8,
    "original_max_position_embeddings": 512,
}  # fmt: skip


def opened(architecture: type[Model], values: dict[str, Any]) -> Any:
    return architecture.from_folder(JsonFile(Path("config.json"), values), frozenset())


def test_contexts_of_llama4_are_those_of_one_chunk() -> None:
    config = opened(Llama4, {**LLAMA4, "attention_chunk_size": 256}).config
    assert config.context_length == 256
    assert config.tables == (0, 0, 0, -1, 0, 0)
    assert config.dense_layers == (0, 2, 4)
    assert (config.intermediate_size, config.shared_size, config.dense_size) == (96, 96, 128)
    assert opened(Llama4, {**LLAMA4, "attention_chunk_size": None}).config.context_length == 512


def test_norms_of_llama4_take_the_magnitude_of_a_rotation_away() -> None:
    """They stand behind it, and only their epsilon tells that it was there."""
    scaling = {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.25, "rope_theta": 5000.0}
    values = {**LLAMA4, "rope_parameters": scaling, "rms_norm_eps": 0.02}
    config = opened(Llama4, values).config
    assert (config.rotary[0].magnitude, config.head_epsilon, config.rms_norm_eps) == (1.0, 0.02 / 1.25**2, 0.02)
    config = opened(Llama4, {**values, "use_qk_norm": False}).config
    assert (config.rotary[0].magnitude, config.head_epsilon) == (1.25, 0.02)


def test_nanbeige_has_keys_and_values_of_each_loop_and_weights_of_one() -> None:
    model = opened(Nanbeige, {**SIZES, "num_loops": 3, "skip_loop_final_norm": True})
    config = model.config
    assert (config.num_layers, config.num_loops, config.norms_loops) == (18, 3, False)
    assert config.kv_layout(7, 16, "bfloat16").shape[0] == 18
    assert {leaf.layers for leaf in model.leaves() if leaf.is_per_layer} == {tuple(range(6))}
    assert opened(Nanbeige, SIZES).config.num_layers == 6


def test_contexts_of_qwen_are_those_in_which_nothing_depends_on_the_length() -> None:
    config = opened(Qwen, {**SIZES, "seq_length": 256, "kv_channels": 32, "layer_norm_epsilon": 1e-6}).config
    assert (config.context_length, config.head_dim, config.intermediate_size) == (256, 32, 48)


def test_a_gguf_file_of_qwen_may_call_its_epsilon_that_of_a_layer_norm(tmp_path: Path) -> None:
    path = Path(__file__).parents[3] / "golden" / "architectures" / "qwen.json"
    golden = json.loads(path.read_text(encoding="utf-8"))
    tensors = tiny_weights("QWenLMHeadModel", golden["shapes"], 0)
    usual = write_gguf(tmp_path / "usual.gguf", golden["config"], tensors)
    late = write_gguf(tmp_path / "late.gguf", {**golden["config"], "is_late": True}, tensors)
    assert open_model(usual).model == open_model(late).model


def test_gemma3n_is_read_as_it_is_published() -> None:
    """With the fields of transformers before version 5, and a list of sizes that are all the same."""
    config = opened(Gemma3n, {"text_config": {**GEMMA3N, "intermediate_size": [96] * 6}}).config
    assert config.is_full == (False, False, False, False, True, False)
    assert config.windows == (512, 512, 512, 512, 0)  # of the layers with pages
    assert (config.num_sparse, config.gate_cutoff) == (2, pytest.approx(1.6448536, rel=1e-7))
    assert [table.frequencies[1] for table in config.rotary] == [
        pytest.approx(base ** (-1 / 8), rel=1e-6) for base in (500.0, 5000.0)
    ]


def test_the_scales_of_minicpm_become_multipliers() -> None:
    config = opened(MiniCpm, MINICPM).config
    assert (config.embedding_scale, config.logit_scale) == (12.0, 0.5)
    assert config.residual_scale == pytest.approx(1.4 / 6**0.5, rel=1e-6)
    within = opened(MiniCpm, {**MINICPM, "rope_scaling": LONGROPE}).config
    assert within.rotary == config.rotary


def test_the_first_and_every_other_layer_of_trinity_have_windows_but_the_fourth() -> None:
    config = opened(Afmoe, {**AFMOE, "sliding_window": 24}).config
    assert config.windows == (24, 24, 24, 0, 24, 24)
    assert config.tables == (0, 0, 0, -1, 0, 0)
    assert (config.embedding_scale, config.dense_layers, config.shared_size) == (8.0, (0,), 64)


@pytest.mark.parametrize(
    ("architecture", "values", "message"),
    [
        (Llama4, {**LLAMA4, "num_experts_per_tok": 2}, "num_experts_per_tok is 2; of this architecture it must be 1"),
        (Qwen, {**SIZES, "no_bias": False}, "no_bias is false; biases of all products are not served"),
        (Qwen, {**SIZES, "rotary_pct": 0.5}, "rotary_pct is 0.5"),
        (Qwen, {**SIZES, "intermediate_size": 95}, "intermediate_size is 95; it must be even"),
        (Qwen, {**SIZES, "kv_channels": 0}, "head_dim is 0"),
        (Nanbeige, {**SIZES, "num_loops": 17}, "num_loops is 17; it must be an integer from 1 to 16"),
        (Nanbeige, {**SIZES, "enable_mhc": True}, "enable_mhc is true; this is not served"),
        (Llama4, {**LLAMA4, "moe_layers": [7]}, "moe_layers is .*from 0 to 5"),
        (Llama4, {**LLAMA4, "moe_layers": []}, "no layer has experts"),
        (Llama4, {**LLAMA4, "no_rope_layers": [1]}, "no_rope_layers is .*for each of 6 layers"),
        (Llama4, {**LLAMA4, "num_local_experts": 1 << 31}, "num_local_experts"),
        (Gemma3n, {**GEMMA3N, "altup_num_inputs": 17}, "there are 17 residual streams"),
        (Gemma3n, {**GEMMA3N, "altup_active_idx": 4}, "number 4 is active"),
        (Gemma3n, {**GEMMA3N, "activation_sparsity_pattern": [0, 0.5, 0, 0, 0, 0]}, "activation_sparsity_pattern"),
        (Gemma3n, {**GEMMA3N, "activation_sparsity_pattern": [1.5] + [0] * 5}, "activation_sparsity_pattern"),
        (Gemma3n, {**GEMMA3N, "activation_sparsity_pattern": [0.5]}, "activation_sparsity_pattern"),
        (Gemma3n, {**GEMMA3N, "intermediate_size": [96, 64] * 3}, "layers of different sizes are not served"),
        (Gemma3n, {**GEMMA3N, "num_kv_shared_layers": 5}, "share keys and values that no other layer makes"),
        (Gemma3n, {**GEMMA3N, "altup_correct_scale": False}, "altup_correct_scale"),
        (Afmoe, {**AFMOE, "num_experts_per_tok": 5}, "a token cannot pick 5 of 4 experts"),
        (Afmoe, {**AFMOE, "score_func": "softmax"}, "score_func"),
        (Afmoe, {**AFMOE, "num_dense_layers": 6}, "it must be below the 6 layers"),
        (MiniCpm, {**MINICPM, "num_experts": 8}, "experts are not served"),
        (MiniCpm, {**MINICPM, "sparse_config": {"topk": 64}}, "sparse attention is not served"),
        (
            MiniCpm,
            {**MINICPM, "rope_scaling": {**LONGROPE, "original_max_position_embeddings": 256}},
            "contexts of 512 tokens, beyond the 256",
        ),
        (Exaone, {**SIZES, "num_layers": 0}, "num_hidden_layers"),
        (Glm, {**SIZES, "partial_rotary_factor": 1.5}, "partial_rotary_factor"),
    ],
)
def test_what_is_not_served_is_refused_by_name(architecture: type[Model], values: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        opened(architecture, values)
