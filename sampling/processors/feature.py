"""What the sampling features with state of their own have in common.

Such a feature is one file: what it keeps for each slot on the device, what is written there when
a request gets a slot, and a pure function over logits. Which requests use it is in
sampling/host/usage.py. One that does not costs nothing: nothing is written for it, and a step in which
no row uses the feature leaves the function out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from sampling.host.packed import WORD_BITS, num_words_of, pack_words
from sampling.host.params import SamplingParams
from sampling.host.rows import SamplingRows

State = TypeVar("State")  # of all slots, on the device
Row = TypeVar("Row")  # of one slot, on the host

# Makes an array of a shape and a type; what it holds before a request is written there counts for nothing.
Allocate = Callable[[tuple[int, ...], Any], jax.Array]


class StateShape(NamedTuple):
    """Sizes that the device's arrays follow from."""

    num_slots: int
    vocab_size: int
    max_model_len: int

    @property
    def num_words(self) -> int:
        """Words of a packed set of tokens."""
        return num_words_of(self.vocab_size)


class Admission(NamedTuple):
    """A request as it gets its slot, for the first time or after a preemption."""

    params: SamplingParams
    token_ids: np.ndarray  # int32, the prompt and what is known of the output
    num_prompt_tokens: int
    stop_ids: frozenset[int]  # tokens that end it

    @property
    def output(self) -> np.ndarray:
        return self.token_ids[self.num_prompt_tokens :]


class Feature(Generic[State, Row]):
    """A feature, of which the methods say what it does.

    Of a row that does not use it, `apply` returns the logits as they came.
    """

    def allocate(self, shape: StateShape, allocate: Allocate) -> State:
        """The arrays of all slots; their first dimension is the slot."""
        raise NotImplementedError

    def row(self, admission: Admission, shape: StateShape) -> Row:
        """What an admitted request writes into its slot: numpy arrays, without the first dimension."""
        raise NotImplementedError


def pack(token_ids: np.ndarray, shape: StateShape) -> np.ndarray:
    """A set of tokens as bits, uint32[num_words]."""
    return pack_words(token_ids, shape.num_words)


def unpack(words: jax.Array, vocab_size: int) -> jax.Array:
    """The bits of uint32[num_rows, num_words] as bool[num_rows, vocab_size]."""
    bits = (words[:, :, None] >> jnp.arange(WORD_BITS, dtype=jnp.uint32)) & 1
    return bits.reshape(words.shape[0], -1)[:, :vocab_size] != 0


def column(rows: SamplingRows, index: int, *, floats: bool = False) -> jax.Array:
    """One column of the rows as [num_rows, 1], ready to meet logits."""
    return jnp.asarray(rows.floats if floats else rows.ints)[:, index, None]


def at_slots(array: jax.Array, slots: jax.Array) -> jax.Array:
    """array[slots]; of padding rows, whose slot is past the end, the last slot's."""
    return array.at[slots].get(mode="clip")
