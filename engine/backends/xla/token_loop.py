"""A loop over a step's rows and their tokens with the states of recurrent layers, in portable XLA.

One function computes a token, of one size in every program, so that a token has the same bits in any step.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from engine.backends.base.token_layout import LOAD, NUM_TOKENS, SAVE, SAVE_END, SLOT, START, TokenLayout

States = tuple[jax.Array, ...]


def run_tokens(
    compute: Callable[[jax.Array, States], tuple[jax.Array, States]], num_tokens: int, out: jax.Array,
    stacks: States, layer: jax.Array, layout: TokenLayout,
) -> tuple[jax.Array, States]:  # fmt: skip
    """The outputs of all real tokens, written into `out` [num_tokens, …], and the updated states of a layer.

    Args:
        compute: from a token's index among the step's, and the states before it, its output and the states behind it.
        stacks: of each state, [layer, entry, …].
    """
    rows, num_decode = layout.rows, layout.num_decode_rows
    tile_size = (num_tokens - num_decode) // layout.num_tiles if layout.num_tiles else 1
    is_padding = rows[:, NUM_TOKENS] == 0
    real_rows = jnp.argsort(is_padding)  # is stable: the tiles of a prompt stay in order

    def of_row(index: jax.Array, carry: tuple[jax.Array, States]) -> tuple[jax.Array, States]:
        out, stacks = carry
        row = real_rows[index]
        columns = rows[row]
        start, count, slot, saved = (columns[column] for column in (START, NUM_TOKENS, SLOT, SAVE))
        first_token = jnp.where(row < num_decode, row, num_decode + (row - num_decode) * tile_size)
        source = jnp.where(columns[LOAD] > 0, columns[LOAD], slot)
        # What an earlier request left may be anything: 0 times a NaN is a NaN.
        states = tuple(jnp.where(start == 0, 0, stack[layer, source]) for stack in stacks)

        def token(offset: jax.Array, carry: tuple[jax.Array, States]) -> tuple[jax.Array, States]:
            out, states = carry
            made, states = compute(first_token + offset, states)
            return out.at[first_token + offset].set(made.astype(out.dtype)), states

        middle = jnp.where(saved > 0, columns[SAVE_END] - start, count)
        out, states = lax.fori_loop(0, middle, token, (out, states))
        stacks = _written(stacks, layer, jnp.where(saved > 0, saved, slot), states)
        out, states = lax.fori_loop(middle, count, token, (out, states))
        return out, _written(stacks, layer, slot, states)

    num_real = jnp.sum(jnp.logical_not(is_padding))
    made: tuple[jax.Array, States] = lax.fori_loop(0, num_real, of_row, (out, stacks))
    return made


def _written(stacks: States, layer: jax.Array, entry: jax.Array, states: States) -> States:
    return tuple(stack.at[layer, entry].set(state) for stack, state in zip(stacks, states, strict=True))
