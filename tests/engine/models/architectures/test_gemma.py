"""What configurations of Gemma say, in the forms that releases of transformers wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.interface.errors import ModelError
from engine.models.architectures.gemma2 import Gemma2
from engine.models.architectures.gemma3 import Gemma3
from engine.models.parts import rotary
from engine.models.parts.model import Model
from engine.weights.formats.model_folder import JsonFile

SIZES = {
    "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 7, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 512,
}  # fmt: skip


def opened(architecture: type[Model], values: dict[str, Any], *names: str) -> Any:
    return architecture.from_folder(JsonFile(Path("config.json"), values), frozenset(names))


def test_gemma3_rotates_as_before_and_since_transformers_5() -> None:
    before = {
        **SIZES, "rope_theta": 5000.0, "rope_local_base_freq": 500.0, "sliding_window": 24,
        "sliding_window_pattern": 3, "rope_scaling": {"rope_type": "linear", "factor": 4.0},
    }  # fmt: skip
    local, everything = "sliding_attention", "full_attention"
    since = {
        **SIZES, "sliding_window": 24, "layer_types": [local, local, everything, local, local, everything, local],
        "rope_parameters": {
            everything: {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0},
            local: {"rope_type": "default", "rope_theta": 500.0},
        },
    }  # fmt: skip
    model = opened(Gemma3, before)
    assert model == opened(Gemma3, since)
    assert model.config.windows == (24, 24, 0, 24, 24, 0, 24)
    assert model.config.tables == (1, 1, 0, 1, 1, 0, 1)
    assert model.config.rotary == (rotary.divided(32, 5000.0, 4.0), rotary.plain(32, 500.0))


def test_gemma3_with_pictures_leaves_most_of_its_text_to_defaults() -> None:
    text = {
        "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "model_type": "gemma3_text",
    }  # fmt: skip
    model = opened(Gemma3, {"text_config": text}, "language_model.model.embed_tokens.weight")
    config = model.config
    assert (config.num_heads, config.num_kv_heads, config.head_dim, config.vocab_size) == (8, 4, 256, 262_208)
    assert (config.attention_scale, config.embedding_scale, config.has_output) == (1 / 16, 2560**0.5, False)
    assert config.windows[:6] == (1024,) * 5 + (0,)
    assert config.rotary == (rotary.divided(256, 1_000_000.0, 8.0), rotary.plain(256, 10_000.0))
    names = {part.stored["safetensors"].name for leaf in model.leaves() for part in leaf.parts}
    assert "language_model.model.layers.{layer}.self_attn.q_norm.weight" in names
    assert all(name.startswith("language_model.model.") for name in names)
    assert model.derived_tensors.fullmatch("vision_tower.vision_model.embeddings.patch_embedding.weight")


def test_gemma2_caps_scores_and_logits_unless_the_configuration_says_null() -> None:
    config = opened(Gemma2, SIZES).config
    assert (config.attention_softcap, config.logit_softcap) == (50.0, 30.0)
    assert config.windows == (4096, 0, 4096, 0, 4096, 0, 4096)
    uncapped = opened(Gemma2, {**SIZES, "attn_logit_softcapping": None, "final_logit_softcapping": None}).config
    assert (uncapped.attention_softcap, uncapped.logit_softcap) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("architecture", "values", "message"),
    [
        (Gemma3, {**SIZES, "use_bidirectional_attention": True}, "use_bidirectional_attention is true"),
        (Gemma3, {**SIZES, "attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0"),
        (Gemma3, {**SIZES, "hidden_activation": "relu"}, 'hidden_activation is "relu"'),
        (Gemma3, {**SIZES, "layer_types": ["full_attention"]}, "it must list 7 times"),
        (Gemma3, {**SIZES, "rope_parameters": {"full_attention": {}}}, "lacks sliding_attention"),
    ],
)
def test_what_is_not_served_is_refused(architecture: type[Model], values: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        opened(architecture, values)
