"""What configurations of mixtures of experts say, and what of it is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.interface.errors import ModelError
from engine.models.architectures.mixtures.bailing_moe import BailingMoe2
from engine.models.architectures.mixtures.dbrx import Dbrx
from engine.models.architectures.mixtures.ernie4_5_moe import Ernie45Moe
from engine.models.architectures.mixtures.glm4_moe import Glm4Moe
from engine.models.architectures.mixtures.granite_moe import GraniteMoe
from engine.models.architectures.mixtures.hunyuan_moe import HunyuanMoe
from engine.models.architectures.mixtures.mellum import Mellum
from engine.models.architectures.mixtures.minimax_m2 import MiniMaxM2
from engine.models.architectures.mixtures.olmoe import Olmoe
from engine.models.architectures.mixtures.qwen2_moe import Qwen2Moe
from engine.models.architectures.mixtures.qwen3_moe import Qwen3Moe
from engine.models.architectures.mixtures.smallthinker import SmallThinker
from engine.models.architectures.shared_experts.dots1 import Dots1
from engine.models.architectures.shared_experts.exaone_moe import ExaoneMoe
from engine.models.parts import rotary
from engine.models.parts.model import Model
from engine.weights.formats.model_folder import JsonFile

SIZES = {
    "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 7, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 512,
}  # fmt: skip
EXPERTS = {**SIZES, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}

SMALLTHINKER = {
    **SIZES, "moe_num_primary_experts": 4, "moe_num_active_primary_experts": 2, "moe_ffn_hidden_size": 32,
}  # fmt: skip
DBRX: dict[str, Any] = {
    "vocab_size": 100, "d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 512,
    "attn_config": {"clip_qkv": 8, "kv_n_heads": 2, "rope_theta": 500000},
    "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
}  # fmt: skip
ROUTED = {**EXPERTS, "n_routed_experts": 4, "num_shared_experts": 1, "moe_topk": 2}


def opened(architecture: type[Model], values: dict[str, Any], *names: str) -> Any:
    return architecture.from_folder(JsonFile(Path("config.json"), values), frozenset(names))


@pytest.mark.parametrize("name", ["num_experts", "num_local_experts"])
def test_either_name_tells_how_many_experts_there_are(name: str) -> None:
    config = opened(Qwen3Moe, {**EXPERTS, "num_experts": None, name: 4, "norm_topk_prob": True}).config
    assert (config.num_experts, config.num_picked, config.normalises_shares) == (4, 2, True)
    assert (config.intermediate_size, opened(Olmoe, EXPERTS).config.intermediate_size) == (32, 96)


def test_qwen2_has_windows_in_every_second_layer_below_a_limit() -> None:
    values = {**EXPERTS, "shared_expert_intermediate_size": 48, "sliding_window": 30, "max_window_layers": 4}
    assert opened(Qwen2Moe, values).config.windows == (0,) * 7
    assert opened(Qwen2Moe, {**values, "use_sliding_window": True}).config.windows == (30, 0, 30, 0, 0, 0, 0)
    assert opened(Qwen2Moe, values).config.has_qkv_bias


@pytest.mark.parametrize("architecture", [Qwen2Moe, Qwen3Moe])
def test_some_layers_of_qwen_may_have_no_experts(architecture: type[Model]) -> None:
    values = {**EXPERTS, "shared_expert_intermediate_size": 48, "mlp_only_layers": [3], "decoder_sparse_step": 2}
    config = opened(architecture, values).config
    assert (config.dense_layers, config.dense_size, config.intermediate_size) == ((0, 2, 3, 4, 6), 96, 32)
    assert opened(architecture, {**values, "mlp_only_layers": [], "decoder_sparse_step": 1}).config.dense_layers == ()


def test_qwen3_has_windows_in_all_layers_if_in_any() -> None:
    values = {**EXPERTS, "sliding_window": 30, "max_window_layers": 4}
    assert opened(Qwen3Moe, values).config.windows == (0,) * 7
    assert opened(Qwen3Moe, {**values, "use_sliding_window": True}).config.windows == (30,) * 7


def test_layers_behind_the_last_one_are_left_out() -> None:
    model = opened(Glm4Moe, ROUTED)
    assert model.leaves_out("model.layers.7.eh_proj.weight")
    assert not model.leaves_out("model.layers.6.eh_proj.weight")
    assert opened(Ernie45Moe, ROUTED).leaves_out("model.mtp_block.0.mlp.up_proj.weight")


def test_the_layers_without_experts_are_those_that_a_file_names() -> None:
    assert opened(Glm4Moe, {**ROUTED, "first_k_dense_replace": 2}).config.dense_layers == (0, 1)
    interval = {"moe_layer_interval": 2, "moe_layer_start_index": 2, "moe_layer_end_index": 4}
    assert opened(Ernie45Moe, {**ROUTED, **interval}).config.dense_layers == (0, 1, 2, 4, 5, 6)
    kinds = ["dense", "sparse", "dense", "sparse", "sparse", "sparse", "dense"]
    config = opened(ExaoneMoe, {**ROUTED, "mlp_layer_types": kinds}).config
    assert (config.dense_layers, config.dense_size) == ((0, 2, 6), 96)
    assert config.tables == (0, 0, 0, -1, 0, 0, 0)


def test_windows_of_dots_are_those_of_the_last_layers() -> None:
    config = opened(Dots1, {**ROUTED, "sliding_window": 30, "max_window_layers": 5}).config
    assert config.windows == (0,) * 5 + (30,) * 2


def test_a_rotated_part_may_be_given_in_features() -> None:
    assert opened(MiniMaxM2, {**EXPERTS, "num_local_experts": 4, "rotary_dim": 16}).config.rotary[0].rotary_dim == 16


def test_lists_of_layers_say_which_have_a_window_and_which_rotate() -> None:
    assert opened(SmallThinker, SMALLTHINKER).config.tables == (0,) * 7
    layout = {"rope_layout": [0, 1, 1, 1, 0, 1, 1], "sliding_window_layout": [0, 1, 1, 1, 0, 1, 1]}
    config = opened(SmallThinker, {**SMALLTHINKER, **layout, "sliding_window_size": 30}).config
    assert (config.tables, config.windows) == ((-1, 0, 0, 0, -1, 0, 0), (0, 30, 30, 30, 0, 30, 30))


def test_mellum_may_have_layers_without_experts_and_windows_that_rotate_otherwise() -> None:
    kinds = ["full_attention", *["sliding_attention"] * 6]
    sparse = ["dense", *["sparse"] * 6]
    config = opened(Mellum, {**EXPERTS, "layer_types": kinds, "mlp_layer_types": sparse}).config
    assert (config.windows, config.tables) == ((0, *(1024,) * 6), (0, *(1,) * 6))
    assert config.rotary == (rotary.plain(32, 500_000.0), rotary.plain(32, 10_000.0))
    assert (config.dense_layers, config.dense_size, config.intermediate_size) == ((0,), 96, 32)


def test_shares_of_dbrx_are_divided_by_their_sum_or_not_at_all() -> None:
    config = opened(Dbrx, DBRX).config
    assert (config.normalises_shares, config.qkv_limit, config.rotary) == (True, 8.0, (rotary.plain(16, 500_000.0),))
    as_they_are = {**DBRX, "ffn_config": {**DBRX["ffn_config"], "moe_normalize_expert_weights": None}}
    assert not opened(Dbrx, as_they_are).config.normalises_shares


def test_files_of_ling_have_either_of_two_types() -> None:
    values = {**ROUTED, "n_group": 2, "topk_group": 1}
    either = {opened(BailingMoe2, {**values, "model_type": name}) for name in ("bailing_moe", "bailing_moe_v2")}
    assert either == {opened(BailingMoe2, values)}


@pytest.mark.parametrize(
    ("architecture", "values", "message"),
    [
        (Qwen3Moe, {**EXPERTS, "mlp_only_layers": list(range(7))}, "mlp_only_layers is .*; no layer has experts"),
        (Qwen3Moe, {**EXPERTS, "mlp_only_layers": ["0"]}, "mlp_only_layers is .*; it must list layers"),
        (Qwen3Moe, {**EXPERTS, "decoder_sparse_step": 9}, "decoder_sparse_step is 9; no layer has experts"),
        (Qwen3Moe, {**EXPERTS, "num_experts_per_tok": 5}, "a token cannot pick 5 of 4 experts"),
        (Qwen2Moe, EXPERTS, "lacks shared_expert_intermediate_size"),
        (GraniteMoe, {**EXPERTS, "num_experts_per_tok": 5}, "a token cannot pick 5 of 4 experts"),
        (Qwen3Moe, SIZES, "lacks moe_intermediate_size"),
        (Mellum, {**EXPERTS, "layer_types": ["full_attention"]}, "layer_types is .*; it must list 7 times"),
        (Mellum, {**EXPERTS, "num_experts": None}, "lacks num_local_experts"),
        (Dbrx, {**DBRX, "attn_config": None}, "lacks attn_config"),
        (Dbrx, {**DBRX, "ffn_config": {"moe_normalize_expert_weights": 2}}, "moe_normalize_expert_weights is 2"),
        (Dbrx, {**DBRX, "ffn_config": {"ffn_act_fn": {"name": "gelu"}}}, 'name is "gelu"; of this architecture'),
        (Dbrx, {**DBRX, "n_heads": 0}, "num_attention_heads is 0"),
        (Olmoe, {**EXPERTS, "clip_qkv": 8.0}, "clip_qkv is 8.0"),
        (Glm4Moe, {**ROUTED, "first_k_dense_replace": 7}, "first_k_dense_replace is 7; it must be below the 7 layers"),
        (Glm4Moe, {**ROUTED, "n_routed_experts": (1 << 31) - 1}, "2147483647 experts each; at most 4096 are served"),
        (Glm4Moe, {**ROUTED, "n_group": 3}, "4 experts cannot form 3 groups"),
        (Ernie45Moe, {**ROUTED, "use_bias": True}, "use_bias is true; biases are not served"),
        (Ernie45Moe, {**ROUTED, "moe_norm_min": 0.75}, "moe_norm_min is 0.75; sums of shares"),
        (Glm4Moe, {**ROUTED, "mlp_bias": True}, "mlp_bias: biases of feed-forward blocks are not served in mixtures"),
        (Qwen3Moe, {**EXPERTS, "per_layer_config": {"2": {"num_experts": 3}}}, "per_layer_config is .*; layers with"),
        (Ernie45Moe, {**ROUTED, "moe_layer_start_index": 9}, "none of the 7 layers has experts"),
        (ExaoneMoe, {**ROUTED, "mlp_layer_types": ["sparse"]}, "mlp_layer_types is .*; it must list 7 times"),
        (ExaoneMoe, {**ROUTED, "mlp_layer_types": ["dense"] * 7}, "no layer has experts"),
        (HunyuanMoe, {**ROUTED, "moe_topk": [1, 2]}, "moe_topk is .*; it must be the same in all layers"),
        (MiniMaxM2, {**EXPERTS, "use_qk_norm": False}, "use_qk_norm is false; queries and keys without norms"),
        (MiniMaxM2, {**EXPERTS, "scoring_func": "softmax"}, 'scoring_func is "softmax"'),
        (BailingMoe2, {**ROUTED, "use_qkv_bias": True}, "use_qkv_bias is true; biases are not served"),
        (BailingMoe2, {**ROUTED, "use_qk_norm": False}, "use_qk_norm is false; queries and keys without norms"),
        (BailingMoe2, {**ROUTED, "score_function": "softmax"}, 'score_function is "softmax"'),
        (BailingMoe2, ROUTED, "4 experts cannot form 8 groups"),
        (SmallThinker, {**SMALLTHINKER, "moe_num_active_primary_experts": 5}, "a token cannot pick 5 of 4 experts"),
        (SmallThinker, {**SMALLTHINKER, "rope_layout": [1, 0]}, "rope_layout is .*; it must list 0 or 1 for each of 7"),
        (SmallThinker, {**SMALLTHINKER, "sliding_window_layout": [1] * 7}, "lacks sliding_window_size"),
    ],
)
def test_what_is_not_served_is_refused(architecture: type[Model], values: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        opened(architecture, values)
