"""GGUF files whose fields say what no model of their architecture is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.interface.errors import ModelError
from engine.models.open_model import open_model
from tests.engine.models.twins.gguf_twins import write_gguf
from tests.golden.architectures.tiny_weights import tiny_weights

FOLDER = Path(__file__).parents[3] / "golden" / "architectures"


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("gemma4", {"num_kv_shared_layers": 10}, "shared_kv_layers' is 10; it must be below the 6 layers"),
        ("gemma4", {"num_kv_shared_layers": 5}, "5 of 6 layers share keys and values that no other"),
        ("gemma4", {"layer_types": ["sliding_attention", "full_attention"]}, "it must say of each of 6 layers"),
        ("gemma4_experts", {"num_experts": 5}, "has shape .*, expected"),
        ("gemma4_experts", {"top_k_experts": 7}, "a token cannot pick 7 of 6 experts"),
        ("gemma3n", {"num_kv_shared_layers": 4}, "4 of 4 layers share keys and values that no other layer makes"),
        ("gemma3n", {"altup_num_inputs": 17}, "there are 17 residual streams"),
        ("gemma3n", {"activation_sparsity_pattern": [0.0, 0.5] * 2}, "activation_sparsity_scale"),
        ("llama4", {"num_experts_per_tok": 2}, "expert_used_count' is 2; of this architecture it must be 1"),
        ("kimi_linear", {"linear_conv_kernel_dim": 65}, "a convolution of 65"),
        ("kimi_linear", {"num_experts_per_token": 9}, "a token cannot pick 9 of 8 experts"),
        ("afmoe", {"num_experts_per_tok": 7}, "a token cannot pick 7 of 6 experts"),
        ("smallthinker", {"first_k_dense_replace": 2}, "layers without experts are not served for this architecture"),
        ("lfm2_moe", {"num_dense_layers": 5}, "leading_dense_block_count' is 5; it must be below the 5 layers"),
        ("nemotron_h_moe_latent", {"num_experts_per_tok": 7}, "a token cannot pick 7 of 6 experts"),
        ("bailing_moe2", {"n_group": 3}, "8 experts cannot form 3 groups"),
        ("deepseek_v32", {"index_topk": 1}, "attention.indexer.top_k' is 1"),
        (
            "glm_dsa_shared",
            {"indexer_types": ["full", "shared"]},
            "indexer.types' is .*; it must say of each of 6 layers",
        ),
        ("glm_dsa_shared", {"indexer_types": ["shared"] * 6}, "the first layer must have an index"),
        ("nanbeige", {"num_loops": 17}, "num_loops' is 17; it must be at most 16"),
        ("mellum", {"num_experts_per_tok": 7}, "a token cannot pick 7 of 6 experts"),
        ("hy_v3", {"num_experts_per_tok": 9}, "a token cannot pick 9 of 8 experts"),
        ("deepseek", {"first_k_dense_replace": 3}, "none of the 3 layers has experts"),
        ("phimoe", {"num_experts_per_tok": 3}, "expert_used_count' is 3; of this architecture it must be 2"),
        ("plamo2", {"mamba_num_heads": 5}, "has shape .*, expected"),
        ("mamba", {"conv_kernel": 65}, "a convolution of 65"),
    ],
)
def test_impossible_fields_are_refused(tmp_path: Path, name: str, changes: dict[str, Any], message: str) -> None:
    golden = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    tensors = tiny_weights(golden["config"]["architectures"][0], golden["shapes"], golden["seed"])
    file = write_gguf(tmp_path / "tiny.gguf", {**golden["config"], **changes}, tensors)
    with pytest.raises(ModelError, match=message):
        open_model(file)
