"""The architecture of GLM 5 (GLM team, "GLM-5: from Vibe Coding to Agentic Engineering", 2026)."""

from collections.abc import Set
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from cache.storage import KVPages
from engine.backends.base.backend import Backends
from engine.backends.base.operands import AttentionConstants, Norm
from engine.backends.base.token_layout import TokenLayout
from engine.models.architectures.latent.deepseek32 import Deepseek32, Deepseek32Config, Indexed
from engine.models.parts.hybrids.layers import Run, through_layers
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params
from engine.weights.leaf import Leaf

# Where config.json says nothing; source: transformers' GlmMoeDsaConfig.
_DEFAULTS: dict[str, Any] = {"n_group": 1, "topk_group": 1, "index_n_heads": 32, "rms_norm_eps": 1e-5}
_FREQUENCY, _OFFSET = "index_topk_freq", "index_skip_topk_offset"
_LETTERS = {"F": "full", "S": "shared"}
# Of GLM 5.2, whose files, known by so long a context, may say nothing: one of four layers has an index.
_LONG_CONTEXT, _LONG_FREQUENCY, _LONG_OFFSET = 1 << 20, 4, 3


@dataclass(frozen=True, kw_only=True)
class GlmDsaConfig(Deepseek32Config):
    """DeepSeek-V3.2's, in which some layers may have no index of their own."""

    index_layers: tuple[int, ...]  # those that have one; the others take what the one before them picks


class _Kind(NamedTuple):
    """What a layer's program depends on."""

    has_index: bool
    is_dense: bool  # whether its feed-forward block has no experts


class _Step(NamedTuple):
    """What all layers of a step read."""

    params: Params
    layout: TokenLayout
    backends: Backends
    constants: AttentionConstants


class _Carry(NamedTuple):
    x: jax.Array
    kv: KVPages
    indexed: Indexed  # by the last index


@dataclass(frozen=True)
class GlmDsa(Deepseek32):
    """DeepSeek-V3.2's layers, whose index may be that of a layer before; it rotates adjacent features.

    A layer without an index holds the keys of that other index in its pages too, and picks the same tokens.
    """

    config: GlmDsaConfig

    model_type = "glm_moe_dsa"
    is_index_paired = True

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        if config.flag("indexer_rope_interleave") is False:
            raise config.error("indexer_rope_interleave", "of this architecture it must be true")
        made = super().from_folder(config.with_defaults(_DEFAULTS), tensor_names)
        return made._with_layers(_read_index_layers(config, made.config.num_layers))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        made, key = super().from_gguf(file), "attention.indexer.types"
        num_layers, kinds = made.config.num_layers, file.fields.value(key)
        if kinds is None:
            is_long = made.config.context_length >= _LONG_CONTEXT
            frequency, offset = (_LONG_FREQUENCY, _LONG_OFFSET) if is_long else (1, 0)
            return made._with_layers(_every(frequency, offset, num_layers))
        if not isinstance(kinds, list) or len(kinds) < num_layers or any(each not in (0, 1) for each in kinds):
            raise file.fields.error(key, f"it must say of each of {num_layers} layers whether it has an index")
        if not kinds[0]:
            raise file.fields.error(key, "the first layer must have an index")
        return made._with_layers(tuple(layer for layer in range(num_layers) if kinds[layer]))

    def _with_layers(self, index_layers: tuple[int, ...]) -> Self:
        values = {name: value for name, value in vars(self.config).items() if name != "index_layers"}
        return replace(self, config=GlmDsaConfig(**values, index_layers=index_layers))

    def index_leaves(self) -> list[Leaf]:
        return [replace(leaf, layers=self.config.index_layers) for leaf in super().index_leaves()]

    def norms_of_index(self, params: Params) -> tuple[Norm | None, Norm]:
        norm, q_norm = super().norms_of_index(params)
        layers = np.array(self.config.index_layers)
        assert norm is not None
        return replace(norm, weight=norm.weight[layers]), replace(q_norm, weight=q_norm.weight[layers])

    def forward(
        self, params: Params, tokens: jax.Array, kv: KVPages, layout: TokenLayout, backends: Backends
    ) -> tuple[jax.Array, KVPages]:
        """As `Decoder.forward`; where layers share an index they come in runs, as `through_layers` finds them."""
        config = self.config
        if not config.is_indexed or len(config.index_layers) == config.num_layers:
            return super().forward(params, tokens, kv, layout, backends)
        step = _Step(params, layout, backends, self.constants(params, layout))
        with_index, dense = frozenset(config.index_layers), frozenset(config.dense_layers)
        kinds = tuple(_Kind(layer in with_index, layer in dense) for layer in range(config.num_layers))

        def run_pattern(run: Run, index: jax.Array, carry: _Carry) -> _Carry:
            pattern = kinds[run.first : run.first + run.length]
            of_pattern = _counts(pattern)
            for offset, kind in enumerate(pattern):
                before = _counts(kinds[: run.first + offset])
                num_indexed, num_dense = (one + index * other for one, other in zip(before, of_pattern, strict=True))
                layer = run.first + offset + index * run.length
                carry = self._layer(kind, layer, num_indexed, num_dense, carry, step)
            return carry

        x = self.embed(params, tokens, layout, backends.products)
        shapes = jax.eval_shape(lambda: self._indexed_of(x, jnp.int32(0), jnp.int32(0), step))
        nothing: Indexed = jax.tree.map(lambda each: jnp.zeros(each.shape, each.dtype), shapes)
        x, kv, _ = through_layers(kinds, run_pattern, _Carry(x, kv, nothing))
        return x, kv

    def _layer(
        self, kind: _Kind, layer: jax.Array, num_indexed: jax.Array, num_dense: jax.Array, carry: _Carry, step: _Step
    ) -> _Carry:
        """The residual stream, kv and index behind a layer, before which so many have an index, or no experts."""
        (x, kv, indexed), (params, layout, backends, constants) = carry, step
        products = backends.products
        of_heads, key, q_latent = self.queries_and_key(x, params, layer, layout, products)
        if kind.has_index:
            indexed = self.index_of((x, q_latent), params, num_indexed, layout, products, constants)
        of_heads, key, constants = self.with_index(of_heads, key, indexed, constants)
        attended, kv = self.attend_to_latents(of_heads, key, kv, params, layer, layout, backends, constants)
        x = self.added(x, attended, "attention_output", params, layer, layout, products)
        if kind.is_dense:
            return _Carry(self.dense_feed_forward(x, params, layer, layout, products, layer - num_dense), kv, indexed)
        return _Carry(self.feed_forward(x, params, layer, layout, products, num_dense), kv, indexed)

    def _indexed_of(self, x: jax.Array, layer: jax.Array, place: jax.Array, step: _Step) -> Indexed:
        """What the index of a layer makes of the residual stream."""
        params, layout, backends, constants = step
        _, _, q_latent = self.queries_and_key(x, params, layer, layout, backends.products)
        return self.index_of((x, q_latent), params, place, layout, backends.products, constants)


def _counts(kinds: tuple[_Kind, ...]) -> tuple[int, int]:
    """How many layers have an index, and how many no experts."""
    return sum(kind.has_index for kind in kinds), sum(kind.is_dense for kind in kinds)


def _every(frequency: int, offset: int, num_layers: int) -> tuple[int, ...]:
    """The layers of which one in so many has an index, and all up to the offset."""
    return tuple(layer for layer in range(num_layers) if max(layer - offset + 1, 0) % frequency == 0)


def _read_index_layers(config: JsonFile, num_layers: int) -> tuple[int, ...]:
    """The layers that have an index of their own; raises ModelError."""
    known = tuple(_LETTERS.values())
    for key in ("indexer_types", "index_topk_pattern"):
        kinds = config.value(key)
        if kinds is None:
            continue
        if isinstance(kinds, str):
            kinds = [_LETTERS.get(letter) for letter in kinds]
        if not isinstance(kinds, list) or len(kinds) != num_layers or any(kind not in known for kind in kinds):
            raise config.error(key, f"it must list {num_layers} times {known[0]!r} or {known[1]!r}")
        if kinds[0] != known[0]:
            raise config.error(key, f"the first layer must be {known[0]!r}")
        return tuple(layer for layer, kind in enumerate(kinds) if kind == known[0])
    offset = config.integer(_OFFSET, least=0)
    return _every(config.integer(_FREQUENCY, least=1) or 1, 2 if offset is None else offset, num_layers)
