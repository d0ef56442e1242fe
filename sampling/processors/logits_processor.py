"""The interface of the sampling features that change logits or keep a state.

A feature has a state for each slot, what is written there when a request gets a slot, and pure functions. A step in
which no row uses the feature, by its row in sampling/host/features.py, skips them.
"""

from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from sampling.host.grammar import WORD_BITS, num_words_of, pack_words
from sampling.host.params import SamplingParams
from sampling.host.rows import SLOT, SamplingRows, values_of

State = TypeVar("State")  # of all slots, on the device
Row = TypeVar("Row")  # of one slot, on the host

# Makes an array of a shape and a type; what it holds before a request is written there counts for nothing.
Allocate = Callable[[tuple[int, ...], Any], jax.Array]


# By the name of a feature: what it keeps, by slot. Slots of requests that do not use the feature hold any values.
FeatureStates: TypeAlias = Mapping[str, Any]


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


class StepInput(NamedTuple):
    """The inputs of a step that features may read, besides their own state."""

    rows: SamplingRows
    states: FeatureStates
    mask: jax.Array  # uint32[num_rows, num_words], what the grammars allow; of rows without one anything

    @property
    def slots(self) -> jax.Array:
        """int32[num_rows]."""
        return jnp.asarray(self.rows.ints)[:, SLOT]


class LogitsProcessor(Generic[State, Row]):
    """A feature on the device: `allocate` and `row` make its state, `apply` changes logits, `update` the state."""

    @property
    def keeps_state(self) -> bool:
        return type(self).allocate is not LogitsProcessor.allocate

    @property
    def is_updated(self) -> bool:
        """Whether a step changes the state."""
        return type(self).update is not LogitsProcessor.update

    def allocate(self, shape: StateShape, allocate: Allocate) -> State:
        """The arrays of all slots; their first dimension is the slot."""
        raise NotImplementedError

    def row(self, admission: Admission, shape: StateShape) -> Row:
        """The state of an admitted request for its slot: numpy arrays, without the first dimension."""
        raise NotImplementedError

    def apply(self, logits: jax.Array, state: State, step: StepInput, uses: jax.Array) -> jax.Array:
        """The logits, float32[num_rows, vocab_size], -inf where banned, changed in the rows that use the feature."""
        raise NotImplementedError

    def update(self, state: State, rows: SamplingRows, tokens: jax.Array, uses: jax.Array) -> State:
        """The state after the step's tokens, int32[num_rows]; unchanged in slots whose rows do not use the feature."""
        return state


def pack(token_ids: np.ndarray, shape: StateShape) -> np.ndarray:
    """A set of tokens as bits, uint32[num_words]."""
    return pack_words(token_ids, shape.num_words)


def unpack(words: jax.Array, vocab_size: int) -> jax.Array:
    """The bits of uint32[num_rows, num_words] as bool[num_rows, vocab_size]."""
    bits = (words[:, :, None] >> jnp.arange(WORD_BITS, dtype=jnp.uint32)) & 1
    return bits.reshape(words.shape[0], -1)[:, :vocab_size] != 0


def column(rows: SamplingRows, name: str) -> jax.Array:
    """The column of a parameter as [num_rows, 1], for arithmetic with logits."""
    return jnp.asarray(values_of(name, rows))[:, None]


def at_slots(array: jax.Array, slots: jax.Array) -> jax.Array:
    """array[slots]; of padding rows, whose slot is past the end, the last slot's."""
    return array.at[slots].get(mode="clip")
