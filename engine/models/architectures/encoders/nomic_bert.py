"""The Nomic BERT architecture (Nussbaum et al., "Nomic Embed", 2024)."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from engine.models.parts.encoders.encoder import Names
from engine.models.parts.encoders.encoder_config import EncoderConfig, read_sizes_of_encoder
from engine.models.parts.encoders.rotary_encoder import GATED_SILU, RotaryEncoder, prefix_of
from engine.models.parts.folder_config import read_epsilon
from engine.models.parts.rotary_config import read_rotary
from engine.weights.formats.model_folder import JsonFile

_THETA = 1000.0
# The fields as published, and their names in transformers.
_NAMES = {
    "n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
    "n_inner": "intermediate_size", "n_positions": "max_position_embeddings", "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
}  # fmt: skip
# What the architecture can do besides, and the values that mean that it does not.
_UNUSED: dict[str, tuple[Any, ...]] = {
    "prenorm": (False,), "parallel_block": (False,), "use_rms_norm": (False, None), "causal": (False,),
    "qkv_proj_bias": (False,), "mlp_fc1_bias": (False,), "mlp_fc2_bias": (False,), "rotary_emb_fraction": (1.0,),
    "rotary_emb_interleaved": (False,), "rotary_emb_scale_base": (None,), "num_experts": (0,),
    "moe_every_n_layers": (0, -1), "activation_function": ("swiglu",),
}  # fmt: skip


@dataclass(frozen=True)
class NomicBert(RotaryEncoder):
    """A rotary encoder with gates and without biases."""

    attention_name: ClassVar[str] = "attn"
    gate_and_up: ClassVar[Sequence[Names]] = (("mlp.fc12", "ffn_gate"), ("mlp.fc11", "ffn_up"))
    of_gguf: ClassVar[dict[str, Any]] = GATED_SILU

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        config = _as_in_transformers(config)
        if config.text("hidden_act") not in (None, "silu"):
            raise config.error("hidden_act", 'of this architecture it must be "silu"')
        sizes = read_sizes_of_encoder(config)
        # Beyond the positions of its training it needs a scaling of its own.
        most = config.integer("max_trained_positions", least=2) or sizes["context_length"]
        sizes["context_length"] = min(sizes["context_length"], most)
        return cls(
            EncoderConfig(
                **sizes,
                layer_norm_eps=read_epsilon(config, "layer_norm_eps", 1e-12),
                num_token_types=config.integer("type_vocab_size", least=1) or 2,
                rotary=(read_rotary(config, sizes["head_dim"], sizes["context_length"], default_theta=_THETA),),
                tables=(0,) * sizes["num_layers"],
                prefix=prefix_of(tensor_names),
                **GATED_SILU,
            )
        )


def _as_in_transformers(config: JsonFile) -> JsonFile:
    """A configuration with transformers' names; raises ModelError for parts that are not computed."""
    if "n_embd" not in config.names:
        return config
    for name, allowed in _UNUSED.items():
        if name in config.names and config.value(name) not in allowed:
            raise config.error(name, f"of this architecture it must be {_listed(allowed)}")
    return config.with_values({new: config.value(old) for old, new in _NAMES.items() if old in config.names})


def _listed(values: Sequence[Any]) -> str:
    return " or ".join(map(repr, values))
