"""The architecture of Phi-3.5-MoE, Phi-mini-MoE and Phi-tiny-MoE (Abdin et al., "Phi-3 technical report", 2024)."""

import dataclasses
from collections.abc import Set
from dataclasses import dataclass
from typing import Self

import jax
import jax.numpy as jnp

from engine.backends.base.operands import NormKind, Picks
from engine.models.architectures.mixtures.mixtral import Mixtral
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.experts import ExpertsConfig, with_experts
from engine.models.parts.longrope import LongRope, read_longrope, read_longrope_of_gguf
from engine.models.parts.rotary_config import rope_tables
from engine.models.parts.routing import Routing
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params

_NUM_PICKED = 2  # of each token, in all models
_JITTER = 0.01  # of all published models; GGUF files do not state it


@dataclass(frozen=True, kw_only=True)
class PhiMoeConfig(ExpertsConfig):
    """A mixture's, with the threshold of its router, and how the rotary embedding depends on the context."""

    jitter: float
    longrope: LongRope | None = None


@dataclass(frozen=True)
class PhiMoe(Mixtral):
    """Mixtral's layers with LayerNorms and biases, LongRoPE, and a router in which only close experts compete."""

    config: PhiMoeConfig

    norm_kind = NormKind.LAYER
    has_norm_bias = True
    has_output_bias = True
    is_paired_in_gguf = False

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        if config.flag("lm_head_bias") is not True:
            raise config.error("lm_head_bias", "an output matrix without biases is not served for this architecture")
        if config.integer("num_experts_per_tok", least=1) not in (None, _NUM_PICKED):
            raise config.error("num_experts_per_tok", f"of this architecture it must be {_NUM_PICKED}")
        sizes = folder_config.read_sizes(config)
        rotary, longrope = read_longrope(config, sizes["head_dim"], sizes["context_length"])
        usual = folder_config.read_decoder(config, tensor_names, "phimoe", rotary=rotary, default_epsilon=1e-5)
        windows = folder_config.read_windows(config, [True] * usual.num_layers)
        return cls._made(
            with_experts(
                dataclasses.replace(usual, windows=windows),
                Routing(num_experts=config.required_integer("num_local_experts", least=2), num_picked=_NUM_PICKED),
            ),
            config.positive_number("router_jitter_noise") or _JITTER,
            None if longrope is None else _with_magnitudes(config, longrope),
        )

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        if file.fields.integer("expert_used_count") != _NUM_PICKED:
            raise file.fields.error("expert_used_count", f"of this architecture it must be {_NUM_PICKED}")
        sizes = gguf_config.read_sizes(file)
        rotary, longrope = read_longrope_of_gguf(file, sizes["head_dim"], sizes["context_length"])
        num_experts = file.fields.required_integer("expert_count", least=2)
        usual = gguf_config.read_decoder(file, rotary=rotary)
        made = with_experts(usual, Routing(num_experts=num_experts, num_picked=_NUM_PICKED))
        return cls._made(made, _JITTER, longrope)

    @classmethod
    def _made(cls, config: ExpertsConfig, jitter: float, longrope: LongRope | None) -> Self:
        made = cls(PhiMoeConfig(**vars(config), jitter=jitter, longrope=longrope))
        return made.for_context(config.context_length)

    def for_context(self, num_tokens: int) -> Self:
        """As `Model.for_context`: with the factors of long contexts where this one is longer than the original."""
        longrope = self.config.longrope
        if longrope is None:
            return self
        return dataclasses.replace(self, config=dataclasses.replace(self.config, rotary=(longrope.of(num_tokens),)))

    def picks(self, scores: jax.Array, params: Params, place: jax.Array) -> Picks:
        """The best expert and the next, each with its share among those that are close to it.

        Source: Liu et al., "GRIN: GRadient-INformed MoE", 2024.
        """
        config, scores = self.config, scores.astype(jnp.float32)
        left, experts, shares = scores, [], []
        for _ in range(_NUM_PICKED):
            best = jnp.max(left, axis=-1, keepdims=True)
            is_far = (best - scores) / jnp.maximum(jnp.abs(scores), best) > 2 * config.jitter
            close = jax.nn.softmax(jnp.where(is_far, -jnp.inf, left), axis=-1)
            picked = jnp.argmax(left, axis=-1, keepdims=True).astype(jnp.int32)
            experts.append(picked)
            shares.append(jnp.take_along_axis(close, picked, axis=-1))
            left = jnp.where(jnp.arange(config.num_experts) == picked, -jnp.inf, left)
        return Picks(jnp.concatenate(experts, axis=-1), jnp.concatenate(shares, axis=-1), config.num_experts)


def _with_magnitudes(config: JsonFile, longrope: LongRope) -> LongRope:
    """With the magnitudes of short and long contexts, which configurations of this architecture state."""
    short, long = longrope.short, longrope.long
    for table in rope_tables(config):
        short = dataclasses.replace(short, magnitude=table.positive_number("short_mscale") or short.magnitude)
        long = dataclasses.replace(long, magnitude=table.positive_number("long_mscale") or long.magnitude)
    return dataclasses.replace(longrope, short=short, long=long)
