"""A prompt is pooled to the same bits however steps have cut it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from engine.interface.config import TILE_GRAIN, TILE_SIZE
from engine.interface.types import Pooling
from engine.schedule.output_processor import joined
from engine.schedule.request import Request
from engine.schedule.step_plan import StepPlan
from engine.step.forward import pool_tile
from engine.step.pooled_tiles import pooled_tiles
from sampling.host.params import SamplingParams

NUM_TOKENS, HIDDEN = 5 * TILE_SIZE + 7, 24
POOLINGS = tuple(pooling for pooling in Pooling if pooling is not Pooling.NONE)


class StatesAlone:
    """A model whose hidden states are embeddings as they are."""

    def states(self, params: object, hidden: jax.Array, tokens: jax.Array, backends: object) -> jax.Array:
        return hidden[tokens]

    def pooled(self, params: object, vectors: jax.Array) -> jax.Array:
        return vectors


@pytest.fixture(scope="module")
def pool() -> Any:
    return jax.jit(partial(pool_tile, model=cast(Any, StatesAlone()), backends=cast(Any, None)))


def embedding(pool: Any, states: np.ndarray, cuts: Sequence[int], first_pooled: int) -> list[np.ndarray]:
    """What the pieces of a prompt between some positions make, each computed by a step beside another prompt's tile."""
    token_ids = [1] * (len(states) + 1)  # a decoder samples behind one more
    request = Request(
        "a", token_ids, SamplingParams(), 1, len(token_ids) + 1, poolings=POOLINGS, first_pooled=first_pooled
    )
    totals: list[np.ndarray | None] = [None] * len(POOLINGS)
    for start, end in zip((0, *cuts), (*cuts, len(token_ids)), strict=True):
        plan = StepPlan()
        plan.add(request, start, end - start, end == len(token_ids))
        hidden = np.full((TILE_SIZE * 8, HIDDEN), np.nan, np.float32)  # what is no token's
        hidden[TILE_SIZE : TILE_SIZE + end - start] = np.vstack([states, states[-1:]])[start:end]
        for tile in pooled_tiles(plan, 0, 1):
            pieces = np.asarray(pool({}, jnp.asarray(hidden), tile.hidden, tile.shares))[tile.has_tokens]
            totals[tile.way] = joined(POOLINGS[tile.way], totals[tile.way], pieces)
    return [total for total in totals if total is not None]


@pytest.mark.parametrize("first_pooled", [0, TILE_GRAIN + 3])
def test_the_sum_does_not_depend_on_the_cuts(pool: Any, first_pooled: int) -> None:
    states = np.random.default_rng(5).normal(size=(NUM_TOKENS, HIDDEN)).astype(np.float32)
    whole = embedding(pool, states, (), first_pooled)
    choose, places = random.Random(5), range(TILE_GRAIN, NUM_TOKENS, TILE_GRAIN)
    for num_cuts in (1, 2, 7, len(places)):
        cut = embedding(pool, states, sorted(choose.sample(places, num_cuts)), first_pooled)
        for pooling, one, other in zip(POOLINGS, cut, whole, strict=True):
            assert np.array_equal(one, other), pooling
    own, weights = states[first_pooled:], np.arange(first_pooled, NUM_TOKENS)[:, None] + 1
    expected = {
        Pooling.CLS: own[0],
        Pooling.LAST: own[-1],
        Pooling.MEAN: own.mean(axis=0),
        Pooling.MEAN_SQRT_LEN: own.sum(axis=0) / len(own) ** 0.5,
        Pooling.WEIGHTED_MEAN: (own * weights).sum(axis=0) / weights.sum(),
        Pooling.MAX: own.max(axis=0),
    }
    for pooling, vector in zip(POOLINGS, whole, strict=True):
        np.testing.assert_allclose(vector, expected[pooling], rtol=0, atol=1e-5)
