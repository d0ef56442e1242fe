"""What configurations of mixtures with shared experts say, and what of it is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.backends.base.operands import NormKind
from engine.interface.errors import ModelError
from engine.models.architectures.shared_experts.cohere2_moe import Cohere2Moe
from engine.models.architectures.shared_experts.deepseek import Deepseek
from engine.models.architectures.shared_experts.hy_v3 import HyV3
from engine.models.parts.model import Model
from engine.models.parts.routing import Scoring
from engine.weights.formats.model_folder import JsonFile

SIZES = {
    "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 7, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 512, "num_experts_per_tok": 2,
}  # fmt: skip
DEEPSEEK = {**SIZES, "n_routed_experts": 4, "n_shared_experts": 2, "moe_intermediate_size": 32}
HY = {**SIZES, "num_experts": 4, "moe_intermediate_size": 32}
COHERE = {**SIZES, "num_experts": 4, "num_shared_experts": 2, "sliding_window": 24}


def opened(architecture: type[Model], values: dict[str, Any]) -> Any:
    return architecture.from_folder(JsonFile(Path("config.json"), values), frozenset())


def test_the_first_deepseek_has_shares_of_a_softmax_and_no_groups() -> None:
    config = opened(Deepseek, {**DEEPSEEK, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1}).config
    assert (config.scoring, config.normalises_shares, config.num_groups) == (Scoring.SOFTMAX, False, 1)
    assert (config.dense_layers, config.dense_size, config.shared_size) == ((0,), 96, 64)


def test_what_configurations_of_hy3_leave_out_is_that_of_transformers() -> None:
    config = opened(HyV3, HY).config
    assert (config.dense_layers, config.shared_size, config.share_scale) == ((0,), 32, 2.826)
    assert (config.scoring, config.normalises_shares, config.has_choice_bias) == (Scoring.SIGMOID, True, True)


def test_layers_of_cohere_without_experts_rotate_where_they_see_all() -> None:
    config = opened(Cohere2Moe, {**COHERE, "first_k_dense_replace": 2, "prefix_dense_intermediate_size": 128}).config
    assert config.windows == (0, 0, 24, 24, 24, 0, 24)
    assert config.tables == (0, 0, 0, 0, 0, -1, 0)
    assert (config.dense_size, config.intermediate_size, config.shared_size) == (128, 96, 192)
    assert (config.norm_kind, config.takes_average, config.scoring) == (NormKind.LAYER, True, Scoring.SOFTMAX)
    with_windows = {"first_k_dense_replace": 2, "prefix_dense_sliding_window_pattern": 2}
    config = opened(Cohere2Moe, {**COHERE, **with_windows, "num_shared_experts": 0}).config
    assert config.windows[:2] == (24, 0)
    assert config.tables[:2] == (0, -1)
    assert not config.takes_average


@pytest.mark.parametrize(
    ("architecture", "values", "message"),
    [
        (Deepseek, {**DEEPSEEK, "scoring_func": "sigmoid"}, 'scoring_func is "sigmoid"'),
        (Deepseek, {**DEEPSEEK, "moe_layer_freq": 2}, "moe_layer_freq is 2; layers without experts between others"),
        (Deepseek, {**DEEPSEEK, "n_routed_experts": 1 << 31}, "n_routed_experts is 2147483648"),
        (Deepseek, {**DEEPSEEK, "first_k_dense_replace": 7}, "first_k_dense_replace is 7; it must be below"),
        (HyV3, {**HY, "attention_bias": True}, "attention_bias is true; biases are not served"),
        (HyV3, {**HY, "mlp_layer_types": ["dense"] * 7}, "no layer has experts"),
        (HyV3, {**HY, "num_experts_per_tok": 5}, "a token cannot pick 5 of 4 experts"),
        (Cohere2Moe, {**COHERE, "expert_selection_fn": "relu"}, 'expert_selection_fn is "relu"; it must be one of'),
        (Cohere2Moe, {**COHERE, "shared_expert_combination_strategy": "max"}, "it must be one of average, sum"),
        (Cohere2Moe, {**COHERE, "attention_bias": True}, "attention_bias is true; biases are not served"),
        (Cohere2Moe, {**COHERE, "first_k_dense_replace": 7}, "first_k_dense_replace is 7; it must be below"),
        (Cohere2Moe, {**COHERE, "num_experts": 0}, "num_experts is 0"),
        (Cohere2Moe, {**COHERE, "layer_types": ["full_attention"]}, "layer_types is .*; it must list 7 times"),
    ],
)
def test_what_is_not_served_is_refused(architecture: type[Model], values: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        opened(architecture, values)
