"""What configurations of mixtures of experts say, and what of it is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.interface.errors import ModelError
from engine.models.architectures.mixtures.granite_moe import GraniteMoe
from engine.models.architectures.mixtures.olmoe import Olmoe
from engine.models.architectures.mixtures.qwen2_moe import Qwen2Moe
from engine.models.architectures.mixtures.qwen3_moe import Qwen3Moe
from engine.models.parts.model import Model
from engine.weights.formats.model_folder import JsonFile

SIZES = {
    "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 7, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 512,
}  # fmt: skip
EXPERTS = {**SIZES, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


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


@pytest.mark.parametrize(
    ("architecture", "values", "message"),
    [
        (Qwen3Moe, {**EXPERTS, "mlp_only_layers": [0]}, "layers without experts are not served"),
        (Qwen3Moe, {**EXPERTS, "decoder_sparse_step": 2}, "layers without experts are not served"),
        (Qwen3Moe, {**EXPERTS, "num_experts_per_tok": 5}, "a token cannot pick 5 of 4 experts"),
        (Qwen2Moe, {**EXPERTS, "mlp_only_layers": [0]}, "layers without experts are not served"),
        (Qwen2Moe, EXPERTS, "lacks shared_expert_intermediate_size"),
        (GraniteMoe, {**EXPERTS, "num_experts_per_tok": 5}, "a token cannot pick 5 of 4 experts"),
        (Qwen3Moe, SIZES, "lacks moe_intermediate_size"),
        (Olmoe, {**EXPERTS, "clip_qkv": 8.0}, "clip_qkv is 8.0"),
    ],
)
def test_what_is_not_served_is_refused(architecture: type[Model], values: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        opened(architecture, values)
