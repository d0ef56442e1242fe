"""The patches of a picture as products and attention of its encoder read them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from engine.backends.base.token_layout import END, NUM_ROW_INTS, NUM_TOKENS, TokenLayout, token_layout


class Patches(NamedTuple):
    """So many patches, of which the first ones are real, and what each of them sees."""

    layout: TokenLayout  # of one text without pages; products of the patches behind it need not be computed
    num_real: jax.Array | None  # None: all
    # int32[num_patches], the first and the last patch that each one sees, which never fall; None: it sees all.
    first_seen: jax.Array | None = None
    last_seen: jax.Array | None = None


def patches(num_patches: int, num_real: jax.Array | None = None) -> Patches:
    """Patches that see all real ones."""
    rows = jnp.zeros((1, NUM_ROW_INTS), jnp.int32)
    rows = rows.at[0, np.array([NUM_TOKENS, END])].set(num_patches if num_real is None else num_real)
    layout = token_layout(rows, jnp.zeros((1, 1), jnp.int32), num_tiles=1, tile_size=num_patches, page_size=1)
    return Patches(layout, num_real)
