"""Mistral's architecture (Jiang et al., "Mistral 7B", 2023), Llama's with windows; GGUF files name it as Llama's."""

import dataclasses
from collections.abc import Set
from dataclasses import dataclass
from typing import Self

import jax
import jax.numpy as jnp

from engine.backends.base.token_layout import TokenLayout
from engine.models.architectures.llama import Llama
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder_config import DecoderConfig
from engine.models.parts.rotary_config import rope_tables
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile

DEFAULT_WINDOW = 4096  # of transformers' classes, where a configuration leaves it out


@dataclass(frozen=True)
class Mistral(Llama):
    """Llama's layers, with one window in all of them."""

    model_type = "mistral"

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        usual = folder_config.read_decoder(config, tensor_names, cls.model_type)
        windows = folder_config.read_windows(config, [True] * usual.num_layers, default=DEFAULT_WINDOW)
        return cls(dataclasses.replace(usual, windows=windows))


@dataclass(frozen=True)
class Ministral(Mistral):
    """The same with `layer_types`, which say of each layer whether it has the window."""

    model_type = "ministral"


@dataclass(frozen=True)
class Ministral3Config(DecoderConfig):
    """The sizes and constants of a decoder, and the growth of queries."""

    query_growth: float = 0.0  # of the logarithm of how many times the original context lies before a query
    original_context: int = 1  # tokens


@dataclass(frozen=True)
class Ministral3(Mistral):
    """Mistral's layers, in which queries grow with their position behind the original context, as in Llama 4."""

    config: Ministral3Config
    model_type = "ministral3"

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        return cls(read_growing(config, tensor_names, cls.model_type))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        usual = gguf_config.read_decoder(file)
        return cls(_growing(usual, *read_growth_of_gguf(file, usual.context_length)))

    def attention_input(self, qkv: jax.Array, layout: TokenLayout) -> jax.Array:
        """As `Decoder.attention_input`. The rotation keeps a query's length, so it may grow before."""
        config = self.config
        return with_grown_queries(qkv, layout.positions, config.q_size, config.query_growth, config.original_context)


def with_grown_queries(
    qkv: jax.Array, positions: jax.Array, q_size: int, query_growth: float, original_context: int
) -> jax.Array:
    """Queries, [num_tokens, q_size] and what stands behind them, as they are at int32[num_tokens] positions."""
    if query_growth == 0.0:
        return qkv
    growth = 1 + query_growth * jnp.log1p((positions // original_context).astype(jnp.float32))
    is_query = jnp.arange(qkv.shape[1]) < q_size
    return qkv * jnp.where(is_query, growth[:, None], 1).astype(qkv.dtype)


def read_growing(
    config: JsonFile, tensor_names: Set[str], model_type: str, *, default_window: int | None = None
) -> Ministral3Config:
    """The configuration of a folder; raises ModelError."""
    usual = folder_config.read_decoder(config, tensor_names, model_type)
    windows = folder_config.read_windows(config, [True] * usual.num_layers, default=default_window)
    return _growing(dataclasses.replace(usual, windows=windows), *read_growth(config, usual.context_length))


def read_growth(config: JsonFile, context_length: int) -> tuple[float, int]:
    """The growth of queries in a folder, and the original context; raises ModelError."""
    growth, original = 0.0, context_length
    for table in rope_tables(config):
        growth = table.number("llama_4_scaling_beta") or growth
        original = table.integer("original_max_position_embeddings", least=1) or original
    return growth, original


def read_growth_of_gguf(file: GGUFTensors, context_length: int) -> tuple[float, int]:
    """The same of a GGUF file."""
    original = file.fields.integer("rope.scaling.original_context_length") or context_length
    return gguf_config.read_multiplier(file, "attention.temperature_scale", 0.0), original


def _growing(usual: DecoderConfig, growth: float, original_context: int) -> Ministral3Config:
    return Ministral3Config(**vars(usual), query_growth=growth, original_context=original_context)
