"""What configurations of MiMo-V2-Flash say, as it is published and as transformers writes it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.interface.errors import ModelError
from engine.models.architectures.mixtures.mimo2 import Mimo2
from engine.weights.formats.gguf_fields import GGUFFields
from engine.weights.formats.model_folder import JsonFile

SIZES = {
    "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 1, "head_dim": 32, "v_head_dim": 16, "max_position_embeddings": 512, "n_routed_experts": 8,
    "num_experts_per_tok": 3, "moe_intermediate_size": 32, "sliding_window": 24, "attention_value_scale": 0.5,
}  # fmt: skip
PUBLISHED = {
    **SIZES, "hybrid_layer_pattern": [0, 1, 1, 0], "moe_layer_freq": [0, 1, 1, 1], "swa_num_key_value_heads": 2,
    "swa_head_dim": 32, "swa_v_head_dim": 16, "swa_num_attention_heads": 4, "rope_theta": 5000, "swa_rope_theta": 500,
    "partial_rotary_factor": 0.334, "layernorm_epsilon": 1e-5, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
    "routed_scaling_factor": None, "n_shared_experts": None, "add_swa_attention_sink_bias": True,
    "add_full_attention_sink_bias": False, "attention_bias": False,
}  # fmt: skip
KINDS = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
OF_TRANSFORMERS = {
    **SIZES, "layer_types": KINDS, "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"], "rms_norm_eps": 1e-5,
    "rope_parameters": {
        kind: {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": 0.334}
        for kind, theta in (("full_attention", 5000.0), ("sliding_attention", 500.0))
    },
}  # fmt: skip


def opened(values: dict[str, Any]) -> Mimo2:
    return Mimo2.from_folder(JsonFile(Path("config.json"), values), frozenset())


def test_the_published_configuration_means_what_transformers_makes_of_it() -> None:
    model = opened(PUBLISHED)
    assert model == opened(OF_TRANSFORMERS)
    config = model.config
    assert (config.windows, config.tables, config.dense_layers) == ((0, 24, 24, 0), (0, 1, 1, 0), (0,))
    assert (config.num_kv_heads, config.value_dim, config.value_scale) == (2, 16, 0.5)
    assert [rotary.rotary_dim for rotary in config.rotary] == [10, 10]
    assert model.leaves_out("model.mtp.layers.0.eh_proj.weight")


def test_sinks_may_have_the_name_of_transformers() -> None:
    names = frozenset({"model.layers.1.self_attn.sinks"})
    model = Mimo2.from_folder(JsonFile(Path("config.json"), PUBLISHED), names)
    (sinks,) = (leaf for leaf in model.leaves() if leaf.name == "sinks")
    assert sinks.parts[0].stored["safetensors"].name == "model.layers.{layer}.self_attn.sinks"
    assert sinks.layers == (1, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"hybrid_layer_pattern": [0, 1]},
            r"hybrid_layer_pattern is \[0, 1\]; it must list 0 or 1 for each of 4 layers",
        ),
        ({"hybrid_layer_pattern": [0, 0, 0, 0]}, "no layer has a window"),
        ({"moe_layer_freq": [0, 0, 0, 0]}, "no layer has experts"),
        ({"swa_head_dim": 16}, "swa_head_dim is 16; it must be head_dim, 32"),
        ({"add_full_attention_sink_bias": True}, "add_full_attention_sink_bias is true"),
        ({"swa_num_key_value_heads": 3}, "4 heads cannot share 3 and 1 heads of keys"),
        ({"v_head_dim": 64, "swa_v_head_dim": 64}, "v_head_dim is 64; it must be an integer from 1 to 32"),
        ({"head_dim": 0, "swa_head_dim": 0}, "head_dim is 0"),
        ({"partial_rotary_factor": 1e308}, r"partial_rotary_factor is 1e\+308"),
        ({"n_routed_experts": 1 << 31}, "n_routed_experts is 2147483648"),
        ({"scoring_func": "softmax"}, 'scoring_func is "softmax"'),
    ],
)
def test_what_is_not_served_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        opened({**PUBLISHED, **changes})


@pytest.mark.parametrize("heads", [4, [], [4, 0], [-2, -2], [4, "x"]])
def test_a_gguf_file_lists_heads_of_keys(heads: Any) -> None:
    stated = {"mimo2.attention.head_count_kv": heads}
    file: Any = SimpleNamespace(fields=GGUFFields(SimpleNamespace(value=stated.get), "mimo2"))  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="it must list the heads of all layers, each at least 1"):
        Mimo2.from_gguf(file)
