"""What configurations of GPT-2, GPT-NeoX and Falcon say, and what of it is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.backends.base.operands import Activation
from engine.interface.errors import ModelError
from engine.models.architectures.gpt.falcon import Falcon
from engine.models.architectures.gpt.gpt2 import Gpt2
from engine.models.architectures.gpt.gpt_neox import GptNeoX
from engine.models.parts.model import Model
from engine.weights.formats.model_folder import JsonFile

GPT2 = {"vocab_size": 100, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}
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


@pytest.mark.parametrize(
    ("architecture", "values", "words"),
    [
        (Falcon, {**SIZES, "alibi": True}, "alibi is true; biases of scores by distance are not served"),
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
