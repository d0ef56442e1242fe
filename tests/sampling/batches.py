"""Requests put into a batch as the engine does it, and the compiled programs that tests share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np

from sampling.host.rows import POSITION, SamplerVariant, SamplingRows, used_features, uses_bits
from sampling.processors.logits_processor import Admission, FeatureStates, StateShape, StepInput, pack
from sampling.registry import PROCESSORS
from sampling.sampler import SamplerBackend, sample, sample_full
from sampling.state import Slots, allocate_states, row_of
from sampling.state import uses as rows_that_use
from tests.forward_steps import QUICK_TO_COMPILE
from tests.sampling.reference import Request
from tests.thoroughness import IS_FULL

NUM_SLOTS = 64
MAX_MODEL_LEN = 128
NUM_ROWS = 64  # of most batches, so that few programs compile
COMPILER_OPTIONS = None if IS_FULL else QUICK_TO_COMPILE


class Batch(NamedTuple):
    """All that `sample_full` takes, in host arrays."""

    logits: np.ndarray  # float32[num_rows, vocab_size]
    slots: Slots
    states: FeatureStates
    rows: SamplingRows
    mask: np.ndarray  # uint32[num_rows, num_words]


def shape_of(vocab_size: int) -> StateShape:
    return StateShape(NUM_SLOTS, vocab_size, MAX_MODEL_LEN)


def admission_of(request: Request) -> Admission:
    return Admission(request.params, np.array(request.token_ids, np.int32), len(request.prompt), request.stop_ids)


def rubbish(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """What an array holds where nothing was written: here what would be taken for tokens, counts and sets of them."""
    return np.random.default_rng(0).integers(0, 7, shape).astype(dtype)


def states_of(requests: Sequence[Request], slots: Sequence[int], vocab_size: int) -> FeatureStates:
    """What is on the device when these requests have these slots."""
    shape = shape_of(vocab_size)
    states = allocate_states(shape, rubbish)  # type: ignore[arg-type]  # numpy on its way to the device
    for request, slot in zip(requests, slots, strict=True):
        for name in used_features(request.params):
            row = row_of(name, admission_of(request), shape)
            arrays, values = jax.tree.leaves(states[name]), jax.tree.leaves(row)
            for array, value in zip(arrays, values, strict=True):
                array[slot] = value
    return states


def batch_of(
    requests: Sequence[Request],
    logits: np.ndarray,
    *,
    seeds: Sequence[int] | None = None,
    slots: Sequence[int] | None = None,
    num_rows: int = NUM_ROWS,
) -> Batch:
    """
    Args:
        logits: float32[num_requests, vocab_size].
        seeds: of each request; else its index.
        slots: likewise. No two may share one, for a step changes what is there.
        num_rows: the rows after those of the requests are padding.
    """
    vocab_size = logits.shape[1]
    shape = shape_of(vocab_size)
    slots = range(len(requests)) if slots is None else slots
    seeds = range(len(requests)) if seeds is None else seeds
    rows = SamplingRows.padding(num_rows, NUM_SLOTS)
    mask = rubbish((num_rows, shape.num_words), np.uint32)
    all_logits = np.zeros((num_rows, vocab_size), np.float32)
    all_logits[: len(requests)] = logits
    for row, (request, slot, seed) in enumerate(zip(requests, slots, seeds, strict=True)):
        uses = uses_bits(request.params, has_grammar=request.grammar is not None)
        rows.set(row, slot, request.params, seed=seed, num_prompt_tokens=len(request.prompt), uses=uses)
        rows.ints[row, POSITION] = len(request.token_ids)
        if request.grammar is not None:
            mask[row] = pack(np.array(sorted(request.grammar), np.int64), shape)
    return Batch(all_logits, Slots.zeros(NUM_SLOTS), states_of(requests, slots, vocab_size), rows, mask)


def sample_batch(backend: SamplerBackend, batch: Batch) -> tuple[np.ndarray, Batch]:
    """The program with every feature: int32[num_rows, NUM_COLUMNS], and the batch with the new slots and states."""
    slots, states, out = _program(backend, SamplerVariant.FULL)(*batch)
    return np.asarray(out), batch._replace(slots=slots, states=states)


def tokens_of(backend: SamplerBackend, batch: Batch, level: SamplerVariant = SamplerVariant.FULL) -> np.ndarray:
    """int32[num_rows]."""
    if level is SamplerVariant.FULL:
        return sample_batch(backend, batch)[0][:, 0]
    _, tokens = _program(backend, level)(batch.logits, batch.slots, batch.rows)
    return np.asarray(tokens)


@cache
def _program(backend: SamplerBackend, level: SamplerVariant) -> Any:
    if level is SamplerVariant.FULL:
        return jax.jit(partial(sample_full, backend=backend), compiler_options=COMPILER_OPTIONS)
    return jax.jit(
        partial(sample, all_greedy=level is SamplerVariant.GREEDY, backend=backend), compiler_options=COMPILER_OPTIONS
    )


def apply_alone(name: str, batch: Batch) -> np.ndarray:
    """The batch's logits after one feature and nothing else."""
    return np.asarray(_feature(name)(batch.logits, StepInput(batch.rows, batch.states, batch.mask)))


@cache
def _feature(name: str) -> Any:
    def apply(logits: jax.Array, step: StepInput) -> jax.Array:
        return PROCESSORS[name].apply(logits, step.states.get(name), step, rows_that_use(step.rows, name))

    return jax.jit(apply, compiler_options=COMPILER_OPTIONS)


def random_logits(seed: int, num_rows: int, vocab_size: int, spread: float = 3.0) -> np.ndarray:
    """float32[num_rows, vocab_size], about as wide as a model's."""
    return (np.random.default_rng(seed).standard_normal((num_rows, vocab_size)) * spread).astype(np.float32)
