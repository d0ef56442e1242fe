"""Heads of encoders that make scores of the first token's hidden state: a dense layer with tanh, and the labels'."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from engine.models.parts.encoders.encoder import Encoder, Names
from engine.models.parts.projections import dense
from engine.weights.layout import Params
from engine.weights.leaf import Leaf, LeafKind, Part, Stored


@dataclass(frozen=True)
class ScoringEncoder(Encoder):
    """An encoder with such a head."""

    dense_names: ClassVar[Names]
    output_names: ClassVar[Names]

    def leaves(self) -> tuple[Leaf, ...]:
        hidden, labels = self.config.hidden_size, self.config.num_labels
        return (
            *super().leaves(),
            *self._head("head_dense", hidden, hidden, self.dense_names),
            *self._head("head_output", labels, hidden, self.output_names),
        )

    def pooled(self, params: Params, vectors: jax.Array) -> jax.Array:
        return dense(params, "head_output", jnp.tanh(dense(params, "head_dense", vectors)))

    def _head(self, leaf: str, outputs: int, inputs: int, names: Names) -> list[Leaf]:
        weights, bias = self._head_part((outputs, inputs), names), self._head_part((outputs,), names, "bias")
        return [
            Leaf(leaf, LeafKind.VECTOR, (weights,), is_per_layer=False),
            Leaf(f"{leaf}_bias", LeafKind.VECTOR, (bias,), is_per_layer=False),
        ]

    def _head_part(self, shape: tuple[int, ...], names: Names, suffix: str = "weight") -> Part:
        """A tensor that belongs to the head even where the encoder's tensors have a prefix."""
        in_folder, in_gguf = (f"{name}.{suffix}" for name in names)
        return Part(shape, {"safetensors": Stored(in_folder), "gguf": Stored(in_gguf)})
