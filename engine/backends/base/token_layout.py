"""The layout of a step's tokens, which attention and products read."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cache.page import NULL_PAGE_ID
from cache.page_groups import PageGroups

# Columns of a step's rows; native/src/runtime/step_rows.h reads the first two and END: the number of tokens of a text
# that one step computes as a whole. From SECOND on, its tokens belong to the second text of a pair (0: it is no pair).
# LOAD, SAVE and SAVE_END are those of models with recurrent layers, of entries in the arrays of states
# (cache/states.py): that of a snapshot from which the row's state is loaded (0: it is that of the slot), that of a
# snapshot to which it is saved (0: none), and after how many tokens of the sequence. Every sequence begins with a state
# of zeros. ADAPTER is one more than the slot of the row's adapter (0: it has none); ADAPTER_SCALE has the bits of a
# float32.
START, NUM_TOKENS, SLOT, TOKEN, LOAD, SAVE, SAVE_END, END, SECOND, ADAPTER, ADAPTER_SCALE, NUM_ROW_INTS = range(12)

BLOCK_SIZE = 128  # tokens of context that portable attention gathers at a time


def pages_per_block(page_size: int) -> int:
    """Pages gathered at a time; page tables are padded to a multiple of this."""
    return max(1, BLOCK_SIZE // page_size)


class TokenLayout(NamedTuple):
    """The rows of a step and the position of each token: one token a decode row, and then those of the tiles."""

    rows: jax.Array  # int32[num_decode_rows + num_tiles, NUM_ROW_INTS], as in the batch
    page_table: jax.Array  # int32[num_decode_rows + num_tiles, num_groups * max_pages]
    num_tiles: int  # static; the last rows
    positions: jax.Array  # int32[num_tokens]
    write_page: jax.Array  # int32[num_tokens], in the first group; the null page for padding
    write_offset: jax.Array  # int32[num_tokens], within the page
    last_seen: jax.Array | None = None  # int32[num_tokens], the last position that each token sees; None: its own
    rope_positions: jax.Array | None = None  # int32[num_tokens, axes], by which M-RoPE rotates; None: `positions`
    groups: PageGroups | None = None  # static; of layers with pages of their own; None: a page is of all layers
    write_pages: jax.Array | None = None  # int32[num_groups, num_tokens], in each group; None: there is one

    @property
    def num_decode_rows(self) -> int:
        return self.rows.shape[0] - self.num_tiles


def single_tokens(tokens: jax.Array) -> TokenLayout:
    """The layout of int32[num_tokens] that are rows of their own, without pages; negative ones are padding."""
    rows = jnp.zeros((len(tokens), NUM_ROW_INTS), jnp.int32).at[:, NUM_TOKENS].set((tokens >= 0).astype(jnp.int32))
    pages = jnp.zeros((len(tokens), 1), jnp.int32)
    return token_layout(rows, pages, num_tiles=0, tile_size=1, page_size=1)


def token_layout(
    rows: np.ndarray | jax.Array, page_table: np.ndarray | jax.Array, *, num_tiles: int, tile_size: int, page_size: int,
    groups: PageGroups | None = None,
) -> TokenLayout:  # fmt: skip
    """Computes the layout of a batch: rows int32[num_rows, NUM_ROW_INTS], page_table int32[num_rows, pages].

    Of each row, the page table has those of the groups side by side.
    """
    num_decode = rows.shape[0] - num_tiles
    rows, table = jnp.asarray(rows), jnp.asarray(page_table)
    within = jnp.concatenate([jnp.zeros(num_decode, jnp.int32), jnp.tile(jnp.arange(tile_size), num_tiles)])
    row = jnp.concatenate([jnp.arange(num_decode), num_decode + jnp.repeat(jnp.arange(num_tiles), tile_size)])
    positions = rows[row, START] + within
    is_real = within < rows[row, NUM_TOKENS]
    # A padding position may lie past the table's end, where the gather would clamp to a real page.
    page = jnp.where(is_real, table[row, positions // page_size], NULL_PAGE_ID)
    write_pages = None
    if groups is not None and groups.num_groups > 1:
        of_groups = table.reshape(len(table), groups.num_groups, -1)[row, :, positions // page_size]
        write_pages = jnp.where(is_real, of_groups.T, NULL_PAGE_ID)
    return TokenLayout(
        rows=rows,
        page_table=table,
        num_tiles=num_tiles,
        positions=jnp.where(is_real, positions, 0),
        write_page=page,
        write_offset=positions % page_size,
        groups=groups,
        write_pages=write_pages,
    )
