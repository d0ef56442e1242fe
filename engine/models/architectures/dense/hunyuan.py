"""The architecture of Tencent's dense Hunyuan models (Tencent Hunyuan team, 2025)."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import ClassVar, Self, TypeVar

import jax
import jax.numpy as jnp

from engine.backends.base.token_layout import TokenLayout
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import Decoder, Names, QueryKeyNorm
from engine.models.parts.decoder_config import DecoderConfig
from engine.models.parts.rotary import Rotary, plain, rotated, rotation_tables
from engine.models.parts.rotary_config import kind_of, read_theta, rope_tables
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile

Config = TypeVar("Config", bound=DecoderConfig)


@dataclass(frozen=True)
class LateNormsDecoder(Decoder):
    """Queries and keys are rotated before they reach attention, which norms them and rotates nothing."""

    query_key_norm = QueryKeyNorm.HEAD
    query_key_norm_names: ClassVar[Mapping[str, Names]] = {
        "q": ("self_attn.query_layernorm", "attn_q_norm"),
        "k": ("self_attn.key_layernorm", "attn_k_norm"),
    }

    def attention_input(self, qkv: jax.Array, layout: TokenLayout) -> jax.Array:
        config, num_tokens = self.config, qkv.shape[0]
        rotation = rotation_tables(layout.positions, config.rotary)[0]
        heads = qkv.reshape(num_tokens, -1, config.head_dim)
        turned, values = jnp.split(heads, [config.num_heads + config.num_kv_heads], axis=1)
        return jnp.concatenate([rotated(turned, rotation), values], axis=1).reshape(qkv.shape)


def with_late_norms(config: Config) -> Config:
    """The configuration of attention that rotates nothing itself."""
    return replace(config, tables=(-1,) * config.num_layers)


@dataclass(frozen=True)
class Hunyuan(LateNormsDecoder):
    """Llama's layers with norms of each head of queries and keys behind the rotation."""

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        return cls(with_late_norms(read_folder(config, tensor_names, "hunyuan_v1_dense")))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        return cls(with_late_norms(gguf_config.read_decoder(file)))


def read_folder(config: JsonFile, tensor_names: Set[str], model_type: str) -> DecoderConfig:
    """The common part of dense models and mixtures; raises ModelError."""
    head_dim = folder_config.read_sizes(config)["head_dim"]
    rotary = _read_stretched(config, head_dim)
    return folder_config.read_decoder(config, tensor_names, model_type, rotary=rotary, default_epsilon=1e-5)


def _read_stretched(config: JsonFile, head_dim: int) -> Rotary | None:
    """The rotation whose base `alpha` makes larger, once for all lengths; None where there is no `alpha`."""
    tables = list(rope_tables(config))
    for table in tables:
        alpha = table.positive_number("alpha")
        if kind_of(table) == "dynamic" and alpha is not None and head_dim > 2:
            try:
                stretched = read_theta(config, tables) * alpha ** (head_dim / (head_dim - 2))
            except OverflowError as error:
                raise table.error("alpha", "it is too large") from error
            return plain(head_dim, stretched)
    return None
