"""What configurations of latent attention say, what of it is refused, and files of early converters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import save_file

from engine.interface.errors import ModelError
from engine.models.architectures.latent.deepseek2 import Deepseek2, DeepseekV3, Glm4MoeLite
from engine.models.architectures.latent.deepseek32 import Deepseek32
from engine.models.architectures.latent.glm_dsa import GlmDsa
from engine.models.architectures.latent.kimi_linear import KimiLinear
from engine.models.architectures.latent.mistral4 import Mistral4
from engine.models.parts.model import Model
from engine.weights.formats.model_folder import JsonFile
from tests.engine.models.same_model import assert_same_model
from tests.engine.models.twins.gguf_twins import write_gguf
from tests.golden.architectures.tiny_weights import tiny_weights

GOLDENS = Path(__file__).parents[4] / "golden" / "architectures"
SIZES = {
    "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 4, "max_position_embeddings": 512, "q_lora_rank": 32, "kv_lora_rank": 64,
    "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 48, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "n_shared_experts": 1, "moe_intermediate_size": 32, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1,
}  # fmt: skip

# As it is published.
KIMI: dict[str, Any] = {
    "num_hidden_layers": 5, "q_lora_rank": None, "model_max_length": 1024, "num_expert_group": 1, "topk_group": 1,
    "num_experts_per_token": 3, "moe_renormalize": True, "routed_scaling_factor": 2.446, "mla_use_nope": True,
    "linear_attn_config": {
        "head_dim": 32, "num_heads": 2, "short_conv_kernel_size": 4, "full_attn_layers": [4],
        "kda_layers": [1, 2, 3, 5],
    },
}  # fmt: skip


def opened(architecture: type[Model], values: dict[str, Any]) -> Any:
    return architecture.from_folder(JsonFile(Path("config.json"), values), frozenset())


@pytest.mark.parametrize("architecture", [Deepseek2, DeepseekV3, Glm4MoeLite, Mistral4])
def test_a_page_holds_one_vector_of_a_token(architecture: type[Model]) -> None:
    layout = opened(architecture, SIZES).config.kv_layout(7, 16, "bfloat16")
    assert layout.shape == (3, 7, 1, 1, 16, 80)
    assert layout.bytes_per_page == 3 * 16 * 80 * 2


def test_kimi_is_deepseek_by_another_name() -> None:
    assert opened(DeepseekV3, {**SIZES, "model_type": "kimi_k2"}) == opened(DeepseekV3, SIZES)


def test_kimi_linear_is_read_as_it_is_published() -> None:
    config = opened(KimiLinear, {**SIZES, **KIMI}).config
    assert config.is_recurrent == (True, True, True, False, True)
    assert (config.num_paged_layers, config.tables, config.context_length) == (1, (-1,), 1024)
    assert (config.num_experts, config.num_picked, config.num_groups, config.share_scale) == (8, 3, 1, 2.446)
    assert (config.delta.num_heads, config.delta.key_dim, config.delta.kernel) == (2, 32, 4)
    assert config.dense_layers == (0,)
    assert config.attention_scale == 48**-0.5


@pytest.mark.parametrize("architecture", [Deepseek32, DeepseekV3, Glm4MoeLite])
def test_the_layers_without_experts_are_those_that_a_file_names(architecture: type[Model]) -> None:
    kinds = ["sparse", "dense", "sparse"]
    assert opened(architecture, {**SIZES, "mlp_layer_types": kinds}).config.dense_layers == (1,)
    assert opened(architecture, {**SIZES, "mlp_layer_types": None}).config.dense_layers == (0,)


def test_layers_of_glm_5_2_have_an_index_by_a_list_a_pattern_or_a_frequency() -> None:
    values = {**SIZES, "num_hidden_layers": 7, "n_group": 1, "topk_group": 1, "index_head_dim": 32}
    assert opened(GlmDsa, values).config.index_layers == tuple(range(7))
    kinds = ["full", "full", "full", "shared", "shared", "shared", "full"]
    stated: list[dict[str, Any]] = [
        {"indexer_types": kinds}, {"index_topk_pattern": "FFFSSSF"}, {"index_topk_pattern": kinds},
        {"index_topk_freq": 4, "index_skip_topk_offset": 3},
    ]  # fmt: skip
    assert {opened(GlmDsa, {**values, **each}).config.index_layers for each in stated} == {(0, 1, 2, 6)}


def test_groups_count_only_where_the_method_says_so() -> None:
    config = opened(Deepseek2, {**SIZES, "topk_method": "group_limited_greedy"}).config
    assert (config.num_groups, config.num_picked_groups, config.num_best_of_group) == (4, 2, 1)
    assert opened(Deepseek2, {**SIZES, "topk_method": "greedy"}).config.num_groups == 1
    assert opened(DeepseekV3, SIZES).config.num_best_of_group == 2


@pytest.mark.parametrize(
    ("architecture", "changes", "words"),
    [
        (KimiLinear, {**KIMI, "layer_types": ["full_attention"] * 5}, "all layers are of one kind"),
        (KimiLinear, {**KIMI, "layer_types": ["mamba"] * 5}, "it must list 5 times 'linear_attention'"),
        (KimiLinear, {**KIMI, "mla_use_nope": False}, "mla_use_nope is false; latents that rotate are not served"),
        (
            KimiLinear,
            {**KIMI, "linear_attn_config": {"full_attn_layers": [6]}},
            "it must list layers, from 1 to 5",
        ),
        (KimiLinear, {**KIMI, "linear_attn_config": {"num_heads": 1 << 30}}, "a delta-net has 1073741824 heads"),
        (GlmDsa, {"indexer_types": ["shared", "full", "full"]}, "indexer_types is .*; the first layer must be 'full'"),
        (GlmDsa, {"index_topk_pattern": "FXF"}, "index_topk_pattern is .*; it must list 3 times 'full' or 'shared'"),
        (GlmDsa, {"index_topk_freq": 0}, "index_topk_freq is 0"),
        (GlmDsa, {"indexer_rope_interleave": False}, "indexer_rope_interleave is false"),
        (DeepseekV3, {"attention_bias": True}, "attention_bias is true; biases are not served"),
        (DeepseekV3, {"qk_rope_head_dim": 15}, "qk_rope_head_dim is 15; it must be even"),
        (DeepseekV3, {"kv_lora_rank": 0}, "kv_lora_rank is 0; it must be an integer from 1"),
        (DeepseekV3, {"kv_lora_rank": 1 << 20}, "kv_lora_rank is 1048576; it must be an integer from 1 to 8192"),
        (DeepseekV3, {"qk_rope_head_dim": 1 << 30}, "qk_rope_head_dim is 1073741824; it must be an integer from 2"),
        (DeepseekV3, {"scoring_func": "softmax"}, 'scoring_func is "softmax"'),
        (DeepseekV3, {"v_head_dim": None}, "lacks v_head_dim"),
        (Mistral4, {"n_routed_experts": 0}, "n_routed_experts is 0; it must be an integer from 1"),
        (DeepseekV3, {"num_attention_heads": 0}, "num_attention_heads is 0"),
        (Deepseek2, {"topk_method": "noaux_tc"}, 'topk_method is "noaux_tc"'),
        (Glm4MoeLite, {"mlp_layer_types": ["sparse"]}, "mlp_layer_types is .*; it must list 3 times"),
    ],
)
def test_what_is_wrong_is_named(architecture: type[Model], changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        opened(architecture, {**SIZES, **changes})


@pytest.mark.parametrize("name", ["deepseek_v2", "deepseek_v2_lite", "deepseek_v3"])
def test_a_file_of_an_early_converter_holds_the_same_model(tmp_path: Path, name: str) -> None:
    golden = json.loads((GOLDENS / f"{name}.json").read_text(encoding="utf-8"))
    tensors = tiny_weights(golden["config"]["architectures"][0], golden["shapes"], golden["seed"])
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(golden["config"]), encoding="utf-8")
    save_file(tensors, folder / "model.safetensors")
    early = write_gguf(tmp_path / "early.gguf", {**golden["config"], "is_early": True}, tensors)
    assert_same_model(folder, early, 1 << 30)
