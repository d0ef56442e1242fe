"""The interface of an architecture: leaves, forward pass and logits, made from the configuration of a model's file."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import ClassVar, Self

import jax
import jax.numpy as jnp
from jax import lax

from cache.storage import KVPages
from engine.backends.base import norms
from engine.backends.base.backend import Backends
from engine.backends.base.model_config import ModelConfig
from engine.backends.base.token_layout import TokenLayout
from engine.interface.types import Pooling
from engine.models.encoders.vision_encoder import VisionEncoder
from engine.models.parts.projections import projected, projection_leaves
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params
from engine.weights.leaf import Leaf


@dataclass(frozen=True)
class Model(ABC):
    """An architecture with the sizes and constants of one model; equal ones compute with the same programs."""

    config: ModelConfig

    is_encoder: ClassVar[bool] = False  # each token sees its whole text, and none is sampled
    takes_adapters: ClassVar[bool] = False  # low-rank ones, beside its leaves of products
    can_be_split: ClassVar[bool] = True  # over several devices, each with some of the heads

    @property
    def encoder(self) -> VisionEncoder | None:
        """What makes embeddings of pictures; None where the model sees none."""
        return None

    @property
    def encoder_inputs(self) -> Mapping[str, int] | None:
        """The inputs of the products of that encoder, by name; None where there is none."""
        return None if self.encoder is None else self.encoder.product_inputs

    # Tensors of a folder that follow from its configuration, which old releases of transformers stored nevertheless.
    derived_tensors: ClassVar[re.Pattern[str]] = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")

    @classmethod
    @abstractmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        """Reads `config.json` of a folder in Hugging Face's layout, whose tensors are given; raises ModelError."""

    @classmethod
    @abstractmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        """Reads the fields of a GGUF file; raises ModelError as `from_folder`."""

    def leaves_out(self, tensor_name: str) -> bool:
        """Whether a folder may have a tensor of this name that the model does not need."""
        return self.derived_tensors.fullmatch(tensor_name) is not None

    def laid_out_for(self, num_tokens: int) -> Self:
        """The model with what requests of up to so many tokens need in leaves and pages, which may then hold fewer."""
        return self

    def for_context(self, num_tokens: int) -> Self:
        """The model for requests of up to so many tokens; the same for all, because they share cached keys."""
        return self

    @abstractmethod
    def leaves(self) -> tuple[Leaf, ...]:
        """All parameters. There should be few: on CPU, each costs about 2.5 µs a call (docs/architecture.md)."""

    @abstractmethod
    def forward(
        self, params: Params, tokens: jax.Array, kv: KVPages, layout: TokenLayout, backends: Backends
    ) -> tuple[jax.Array, KVPages]:
        """Runs tokens, int32[num_tokens], through all layers: [num_tokens, hidden], and the updated kv."""

    @abstractmethod
    def logits(self, params: Params, hidden: jax.Array, sampled: jax.Array, backends: Backends) -> jax.Array:
        """float32[num_sampled_rows, vocab] of the tokens of `forward` with these indices, negative in padding."""

    @property
    def num_labels(self) -> int:
        """Scores that its head makes of a pooled text; 0 where it has no such head."""
        return self.config.num_labels

    @property
    def head_pooling(self) -> Pooling:
        """How a text is pooled that its head scores."""
        return Pooling.CLS if self.is_encoder else Pooling.LAST

    def all_leaves(self) -> tuple[Leaf, ...]:
        """As `leaves`, and those of the projections."""
        return (*self.leaves(), *projection_leaves(self.config.projections))

    def pooled(self, params: Params, vectors: jax.Array) -> jax.Array:
        """What becomes of pooled hidden states, float32[num_texts, hidden]: embeddings, or the scores of a head."""
        return projected(self.config.projections, params, vectors)

    @abstractmethod
    def states(self, params: Params, hidden: jax.Array, tokens: jax.Array, backends: Backends) -> jax.Array:
        """[num_tokens, hidden] after the last norm, for embeddings, of tokens by their indices, negative in padding."""

    def all_states(self, params: Params, hidden: jax.Array, backends: Backends) -> jax.Array:
        """The same of all tokens."""
        return self.states(params, hidden, jnp.arange(hidden.shape[0]), backends)


Carry = tuple[jax.Array, KVPages]

normed = norms.normed  # outside a product, as after the blocks of Gemma 2; a norm before a product belongs to it


def run_layers(
    layer: Callable[[jax.Array, Carry], Carry], num_layers: int, hidden: jax.Array, kv: KVPages, *, first: int = 0
) -> Carry:
    """Runs so many layers over [num_tokens, hidden] and kv; `layer` takes its index, an int32 scalar, from `first`."""
    carry: Carry = lax.fori_loop(first, first + num_layers, layer, (hidden, kv))
    return carry
