"""The low-rank products of adapters, in XLA."""

import jax
import jax.numpy as jnp
from jax import lax

from engine.backends.base.operands import LowRankPairs
from engine.backends.base.token_layout import ADAPTER, ADAPTER_SCALE, TokenLayout


def low_rank(x: jax.Array, pairs: LowRankPairs, layer: jax.Array, layout: TokenLayout) -> jax.Array:
    """What the adapters of the step's rows make of x, [num_tokens, outputs]; 0 in rows without an adapter.

    All tokens are multiplied with the pairs of all slots, and what is not of a token's own adapter becomes 0 between
    the two matrices. So there are two products whatever the adapters of a step are, and no copy of a pair by token.
    """
    down = lax.dynamic_index_in_dim(pairs.down, layer, axis=1, keepdims=False)  # [slots, inputs, parts * rank]
    up = lax.dynamic_index_in_dim(pairs.up, layer, axis=1, keepdims=False)  # [slots, rank, outputs]
    num_slots, rank, _ = up.shape
    inner = jnp.einsum("ti,sir->tsr", x, down, preferred_element_type=jnp.float32)
    inner = inner.reshape(len(x), num_slots, len(pairs.ends), rank)
    shares = _shares(layout, num_slots, len(x))[:, :, None, None]
    # Another request's adapter may overflow, and 0 times infinity is a NaN.
    inner = jnp.where(shares == 0, 0, inner * shares).astype(x.dtype)
    starts = (0, *pairs.ends)
    added = [
        jnp.einsum("tsr,sro->to", inner[:, :, part], up[..., starts[part] : end], preferred_element_type=jnp.float32)
        for part, end in enumerate(pairs.ends)
    ]
    return jnp.concatenate(added, axis=1).astype(x.dtype)


def _shares(layout: TokenLayout, num_slots: int, num_tokens: int) -> jax.Array:
    """float32[num_tokens, num_slots]: the scale of each token's own adapter, 0 of all others."""
    slots, scales = layout.rows[:, ADAPTER], lax.bitcast_convert_type(layout.rows[:, ADAPTER_SCALE], jnp.float32)
    of_row = jnp.where(slots[:, None] == 1 + jnp.arange(num_slots), scales[:, None], 0.0)
    num_decode, num_tiles = layout.num_decode_rows, layout.num_tiles
    if not num_tiles:
        return of_row
    return jnp.concatenate(
        [of_row[:num_decode], jnp.repeat(of_row[num_decode:], (num_tokens - num_decode) // num_tiles, 0)]
    )
