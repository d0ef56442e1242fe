"""The architecture of Trinity (Arcee AI, "Trinity", 2025)."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from cache.storage import KVPages
from engine.backends.base.backend import Backends, Products
from engine.backends.base.operands import AttentionConstants
from engine.backends.base.token_layout import TokenLayout
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import Names, QueryKeyNorm, in_layers
from engine.models.parts.decoder_config import DecoderConfig
from engine.models.parts.experts import ExpertsConfig
from engine.models.parts.routed import config as routed_config
from engine.models.parts.routed.decoder import RoutedDecoder
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params
from engine.weights.leaf import Part

_PERIOD = 4  # the last of so many layers sees all, where a file does not say
# Where config.json says nothing; source: transformers' AfmoeConfig.
_DEFAULTS: dict[str, Any] = {"num_shared_experts": 2, "num_dense_layers": 1, "route_scale": 1.0, "head_dim": 128}


@dataclass(frozen=True, kw_only=True)
class AfmoeConfig(ExpertsConfig):
    """A mixture's; behind queries, keys and values there are gates of what attention makes."""

    @property
    def joined_outputs(self) -> dict[str, int]:
        """As `ModelConfig.joined_outputs`."""
        return {**super().joined_outputs, "queries": self.q_size}


@dataclass(frozen=True)
class Afmoe(RoutedDecoder):
    """Gated attention with norms of heads, norms before and behind each block, and experts behind the first layers.

    Layers that see all do not rotate.
    """

    config: AfmoeConfig
    can_be_split = False
    takes_adapters = False  # until gates are tried

    norms: ClassVar[Mapping[str, Names]] = {
        "attention_norm": ("input_layernorm", "attn_norm"),
        "attention_output_norm": ("post_attention_layernorm", "post_attention_norm"),
        "mlp_norm": ("pre_mlp_layernorm", "ffn_norm"),
        "down_norm": ("post_mlp_layernorm", "post_ffw_norm"),
    }
    query_key_norm = QueryKeyNorm.HEAD
    router_names: ClassVar[Names] = ("mlp.router.gate", "ffn_gate_inp")
    choice_bias_names: ClassVar[Names] = ("mlp.expert_bias", "exp_probs_b")

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        config = config.with_defaults(_DEFAULTS)
        if folder_config.read_flag(config, "attention_bias", False):
            raise config.error("attention_bias", "biases are not served for this architecture")
        if config.text("score_func") not in (None, "sigmoid"):
            raise config.error("score_func", 'of this architecture it must be "sigmoid"')
        usual = folder_config.read_decoder(config, tensor_names, "afmoe", default_epsilon=1e-5)
        period = config.integer("global_attn_every_n_layers", least=1) or _PERIOD
        is_local = [(layer + 1) % period != 0 for layer in range(usual.num_layers)]
        usual = _with_windows(usual, folder_config.read_windows(config, is_local, default=1024))
        if folder_config.read_flag(config, "mup_enabled", False):
            usual = replace(usual, embedding_scale=usual.hidden_size**0.5)
        names = {"first_k_dense_replace": "num_dense_layers", "routed_scaling_factor": "route_scale"}
        config = config.with_values(
            {
                **{usual_name: config.value(own) for usual_name, own in names.items()},
                "norm_topk_prob": folder_config.read_flag(config, "route_norm", True),
            }
        )
        made = routed_config.read_folder(config, usual, experts_key="num_experts", shared_key="num_shared_experts")
        return cls(AfmoeConfig(**vars(made)))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        usual = gguf_config.read_decoder(file)
        usual = _with_windows(usual, gguf_config.read_windows(file, usual.num_layers, period=_PERIOD))
        usual = replace(usual, embedding_scale=usual.hidden_size**0.5)
        return cls(AfmoeConfig(**vars(routed_config.read_gguf(file, usual, normalises_shares=True))))

    def qkv_parts(self, inputs: int | None) -> tuple[Part, ...]:
        size = self.config.q_size
        gates = in_layers((size,) if inputs is None else (size, inputs), ("self_attn.gate_proj", "attn_gate"))
        return (*super().qkv_parts(inputs), gates)

    def attend(
        self, x: jax.Array, kv: KVPages, params: Params, index: jax.Array, layout: TokenLayout, backends: Backends,
        constants: AttentionConstants,
    ) -> tuple[jax.Array, KVPages]:  # fmt: skip
        size = self.config.q_size
        made = backends.products.norm_product(x, self.norm(params, "attention_norm"), params["qkv"], index, layout)
        attended, kv = backends.attention(made[:, :-size], kv, index, layout, constants)
        return (attended * jax.nn.sigmoid(made[:, -size:])).astype(x.dtype), kv

    def feed_forward(
        self, x: jax.Array, params: Params, index: jax.Array, layout: TokenLayout, products: Products,
        num_others: int | jax.Array = 0,
    ) -> jax.Array:  # fmt: skip
        place, inputs = index - num_others, self._inputs(x, params, index, layout, products)
        scores = self.scores(inputs, params, place, layout, products)
        made = self.with_experts(jnp.zeros_like(x), inputs, scores, params, place, layout, products)
        return self._plus_normed(x, made, params, index, layout, products)

    def dense_feed_forward(
        self, x: jax.Array, params: Params, index: jax.Array, layout: TokenLayout, products: Products,
        num_others: int | jax.Array = 0,
    ) -> jax.Array:  # fmt: skip
        place, inputs = index - num_others, self._inputs(x, params, index, layout, products)
        mixed = products.norm_product(
            inputs, None, params["dense_gate_up"], place, layout, activation=self.config.activation, is_gated=True
        )
        made = products.norm_product(mixed, None, params["dense_down"], place, layout)
        return self._plus_normed(x, made, params, index, layout, products)

    def _inputs(
        self, x: jax.Array, params: Params, index: jax.Array, layout: TokenLayout, products: Products
    ) -> jax.Array:
        """What a feed-forward block reads."""
        norm = self.norm(params, "mlp_norm")
        assert norm is not None
        return products.norm(x, norm, index, layout)

    def _plus_normed(
        self, x: jax.Array, made: jax.Array, params: Params, index: jax.Array, layout: TokenLayout, products: Products
    ) -> jax.Array:
        """The residual stream and, normed, what a feed-forward block makes."""
        norm = self.norm(params, "down_norm")
        assert norm is not None
        return (x + products.norm(made, norm, index, layout)).astype(x.dtype)


def _with_windows(usual: DecoderConfig, windows: tuple[int, ...]) -> DecoderConfig:
    """Layers without a window do not rotate."""
    return replace(usual, windows=windows, tables=tuple(0 if window else -1 for window in windows))
