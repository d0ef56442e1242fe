"""Classes that makers call otherwise than transformers does: the models are those of the usual names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.engine.models.same_model import assert_same_model
from tests.golden.architectures.tiny_weights import tiny_weights

FOLDER = Path(__file__).parents[2] / "golden" / "architectures"
# Of Falcon and StableLM, a field in transformers' configuration and in the makers'.
RENAMED = {
    "RWForCausalLM": {"num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "num_kv_heads": "n_head_kv"},
    "StableLMEpochForCausalLM": {"layer_norm_eps": "norm_eps"},
}


class Alias(NamedTuple):
    """A golden, and what differs from its `config.json` in that of the other name; None: it is not there."""

    golden: str
    changes: Mapping[str, Any] = MappingProxyType({})
    usual: Mapping[str, Any] = MappingProxyType({})  # what differs from the golden's under the usual name
    more_tensors: tuple[str, ...] = ()  # which are left where they are


LLAMA_BIASES = {"attention_bias": None, "mlp_bias": None, "bias": True}
ALIASES: dict[str, tuple[Alias, ...]] = {
    "LLaMAForCausalLM": (Alias("llama"),),
    "AquilaForCausalLM": (Alias("llama", {"model_type": "aquila"}),),
    "IQuestCoderForCausalLM": (Alias("llama", {"model_type": "iquestcoder"}),),
    "InternLMForCausalLM": (
        Alias(
            "pangu",
            {"model_type": "internlm", "rotary": {"base": 5000.0, "type": "dynamic"}, "rope_theta": None},
            {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": True},
        ),
    ),
    "InternLM3ForCausalLM": (
        Alias("llama_linear_biases_tied", {"model_type": "internlm3", "qkv_bias": True, **LLAMA_BIASES}),
    ),
    "MiMoForCausalLM": (
        Alias(
            "qwen2",
            {"model_type": "mimo", "num_nextn_predict_layers": 1},
            more_tensors=("model.mtp_layers.0.input_proj.weight",),
        ),
    ),
    "Ernie4_5_ForCausalLM": (Alias("ernie4_5"),),
    "ExaoneMoEForCausalLM": (Alias("exaone_moe"),),
    "LFM2ForCausalLM": (Alias("lfm2"),),
    "PLaMo2ForCausalLM": (Alias("plamo2"),),
    "PLaMo3ForCausalLM": (Alias("plamo3"),),
    "ChatGLMForConditionalGeneration": (Alias("chatglm"),),
    "RWForCausalLM": (
        Alias("falcon", {"model_type": "RefinedWebModel", "num_kv_heads": None}),
        Alias("falcon_new", {"model_type": "RefinedWeb", "new_decoder_architecture": None}),
    ),
    "StableLMEpochForCausalLM": (
        Alias("stablelm", {"model_type": "stablelm_epoch", "rope_pct": 0.25, "rope_theta": 5000.0}),
    ),
    "MPTForCausalLM": (Alias("mpt"),),
    "BaiChuanForCausalLM": (Alias("baichuan"),),
    "PhiMoEForCausalLM": (Alias("phimoe"),),
}


def written(folder: Path, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Path:
    folder.mkdir()
    stated = {key: value for key, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(stated), encoding="utf-8")
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("name", "alias"),
    [pytest.param(name, each, id=f"{name}-{each.golden}") for name, all_of in ALIASES.items() for each in all_of],
)
def test_another_name_is_of_the_same_model(tmp_path: Path, name: str, alias: Alias) -> None:
    golden = json.loads((FOLDER / f"{alias.golden}.json").read_text(encoding="utf-8"))
    tensors = tiny_weights(golden["config"]["architectures"][0], golden["shapes"], golden["seed"])
    config = golden["config"] | {**alias.changes, "architectures": [name]}
    for usual, own in RENAMED.get(name, {}).items():
        config |= {own: config.get(usual), usual: None}
    more = {tensor: np.zeros((2, 2), np.float32) for tensor in alias.more_tensors}
    other = written(tmp_path / "other", config, tensors | more)
    assert_same_model(other, written(tmp_path / "usual", golden["config"] | {**alias.usual}, tensors), 1 << 30)
