"""What configurations of further decoders say, in the forms that files have, and what of it is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.interface.errors import ModelError
from engine.models.architectures.dense.exaone4 import Exaone4
from engine.models.architectures.dense.gemma import Gemma
from engine.models.architectures.dense.glm4 import Glm4
from engine.models.architectures.dense.jais2 import Jais2
from engine.models.architectures.dense.maincoder import Maincoder
from engine.models.architectures.dense.olmo3 import Olmo3
from engine.models.architectures.dense.seed_oss import SeedOss
from engine.models.architectures.head_norms.cohere import Cohere, Cohere2
from engine.models.parts import rotary
from engine.models.parts.model import Model
from engine.weights.formats.model_folder import JsonFile

SIZES = {
    "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 5, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512,
}  # fmt: skip


def opened(architecture: type[Model], values: dict[str, Any], *names: str) -> Any:
    return architecture.from_folder(JsonFile(Path("config.json"), values), frozenset(names))


def test_olmo3_stretches_only_layers_without_a_window() -> None:
    """As published before version 5 of transformers, with one table of scaling."""
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    config = opened(Olmo3, {**SIZES, "sliding_window": 24, "rope_theta": 5000.0, "rope_scaling": scaling}).config
    assert config.windows == (24, 24, 24, 0, 24)
    assert config.tables == (1, 1, 1, 0, 1)
    assert config.rotary[1] == rotary.plain(16, 5000.0)
    assert config.rotary[0] == rotary.yarn(16, 5000.0, factor=4.0, original_context=128)


def test_layers_that_see_all_do_not_rotate_beside_layers_with_windows() -> None:
    pattern = {**SIZES, "sliding_window": 24, "sliding_window_pattern": 2}
    for architecture in (Exaone4, Cohere2):
        config = opened(architecture, pattern).config
        assert config.windows == (24, 0, 24, 0, 24)
        assert config.tables == (0, -1, 0, -1, 0)
    everywhere = opened(Exaone4, {**SIZES, "sliding_window": None}).config
    assert (everywhere.windows, everywhere.tables) == ((0,) * 5, (0,) * 5)


def test_what_configurations_leave_out_is_that_of_transformers() -> None:
    assert opened(SeedOss, SIZES).config.has_qkv_bias
    assert not opened(SeedOss, SIZES).config.has_attention_output_bias
    assert opened(SeedOss, {**SIZES, "attention_out_bias": True}).config.has_attention_output_bias
    assert opened(Gemma, {**SIZES, "hidden_act": "gelu"}) == opened(Gemma, SIZES)
    assert opened(Gemma, SIZES).config.head_dim == 256
    assert opened(Glm4, SIZES).config.rotary == (rotary.plain(64, 10000.0),)
    assert opened(Cohere, SIZES).config.logit_scale == 0.0625
    assert opened(Jais2, SIZES).config.has_qkv_bias
    assert opened(Jais2, SIZES).config.has_mlp_bias
    assert opened(Maincoder, {**SIZES, "intermediate_size_mlp": 128}).config.intermediate_size == 128
    assert opened(Maincoder, SIZES).config.rotary == (rotary.plain(16, 1_000_000.0),)


@pytest.mark.parametrize(
    ("architecture", "values", "message"),
    [
        (Gemma, {"hidden_act": "silu"}, 'hidden_act is "silu".*gelu_pytorch_tanh'),
        (Gemma, {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        (Maincoder, {"use_qk_norm": False}, "use_qk_norm is false; queries and keys without norms"),
        (Jais2, {"hidden_act": "silu"}, 'hidden_act is "silu".*relu2'),
        (Cohere2, {"sliding_window_pattern": 0}, "sliding_window_pattern"),
        (Exaone4, {"sliding_window": 24, "sliding_window_pattern": "LLLG"}, "sliding_window_pattern.*layer_types"),
        (Olmo3, {"layer_types": ["full_attention"]}, "layer_types"),
        (Olmo3, {"rope_parameters": {"full_attention": {}}}, "sliding_attention"),
        (Glm4, {"partial_rotary_factor": 1.5}, "partial_rotary_factor"),
        (SeedOss, {"model_type": "llama"}, "model_type"),
    ],
)
def test_what_is_not_served_is_refused(architecture: type[Model], values: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        opened(architecture, {**SIZES, **values})
