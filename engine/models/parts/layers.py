"""What the forward passes of architectures share."""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax import lax

from cache.storage import KVPages
from engine.backends.base import norms

Carry = tuple[jax.Array, KVPages]

normed = norms.normed  # outside a product, as after the blocks of Gemma 2; a norm before a product belongs to it


def run_layers(layer: Callable[[jax.Array, Carry], Carry], num_layers: int, hidden: jax.Array, kv: KVPages) -> Carry:
    """What the last layer makes of [num_tokens, hidden], and kv; each layer is told its index, an int32 scalar."""
    carry: Carry = lax.fori_loop(0, num_layers, layer, (hidden, kv))
    return carry
