"""A step on the wire: what a follower reads is what the leader's programs take."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
import pytest

from engine.interface.config import TILE_SIZE
from engine.multihost.step_frame import StepFormat
from engine.schedule.request import Request
from engine.step.inputs import FeatureWrite, PooledTile, ScoredTile, StepBatch, StepInputs, any_row, writes_of
from engine.step.shapes import StepShape
from sampling.host.params import SamplingParams
from sampling.host.rows import SamplerVariant, SamplingRows
from sampling.processors.logits_processor import StateShape
from sampling.registry import STATEFUL

FORMAT = StepFormat(max_pages_per_request=8, state_shape=StateShape(num_slots=4, vocab_size=100, max_model_len=64))


def random_like(array: np.ndarray, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-100, 100, array.shape).astype(array.dtype)


def step(level: SamplerVariant, *, num_tiles: int = 1, awaits_masks: bool = False) -> StepInputs:
    shape = StepShape(2, num_tiles)
    batch = StepBatch(*(random_like(array, 1) for array in StepBatch.padding(shape, 4, 8).arrays))
    sampling = SamplingRows._make(random_like(array, 2) for array in SamplingRows.padding(4, 4))
    return StepInputs(shape, batch, sampling, level, 3, 1, awaits_masks, [], [], [])


def assert_same(one: StepInputs, other: StepInputs) -> None:
    assert other._replace(batch=one.batch, sampling=one.sampling, scored=[], pooled=[]) == one._replace(
        scored=[], pooled=[]
    )
    for mine, theirs in zip((*one.batch.arrays, *one.sampling), (*other.batch.arrays, *other.sampling), strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs)


def content_of(inputs: StepInputs, writes: list[FeatureWrite]) -> bytes:
    return b"".join(FORMAT.pack(inputs, writes))


def test_a_step_and_all_that_comes_with_it_survive_the_wire() -> None:
    request = Request(
        "r", [5, 6, 7], SamplingParams(frequency_penalty=0.5, logit_bias=((3, 1.5),), bad_words=((9,),)), 1, 9
    )
    request.slot = 2
    writes = list(writes_of(request, FORMAT.state_shape))
    assert len(writes) >= 3
    tile = np.arange(TILE_SIZE, dtype=np.int32)
    inputs = step(SamplerVariant.FULL, awaits_masks=True)._replace(
        scored=[ScoredTile(request, tile, tile + 1, 5)],
        pooled=[PooledTile(request, tile, np.full(TILE_SIZE, 0.25, np.float32))],
    )
    got, got_writes = FORMAT.unpack(content_of(inputs, writes))
    assert_same(inputs, got)
    np.testing.assert_array_equal(got.scored[0].following, tile + 1)
    np.testing.assert_array_equal(got.pooled[0].shares, inputs.pooled[0].shares)
    assert [(write.name, write.slot) for write in got_writes] == [(write.name, 2) for write in writes]
    for mine, theirs in zip(writes, got_writes, strict=True):
        assert jax.tree.structure(mine.row) == jax.tree.structure(theirs.row)
        jax.tree.map(np.testing.assert_array_equal, mine.row, theirs.row)


def test_a_step_without_news_has_one_size_for_its_shape() -> None:
    sizes = {len(content_of(step(level), [])) for level in SamplerVariant}
    assert len(sizes) == 1
    assert sizes != {len(content_of(step(SamplerVariant.GREEDY, num_tiles=2), []))}


def test_masks_and_what_a_grammars_end_has_changed_follow_their_step() -> None:
    leaders = step(SamplerVariant.FULL, awaits_masks=True)
    followers, _ = FORMAT.unpack(content_of(leaders, []))
    leaders.sampling.ints[1, 3] = 77
    masks = np.arange(4 * FORMAT.state_shape.num_words, dtype=np.uint32).reshape(4, -1)
    inputs, got = FORMAT.unpack_masks(followers, b"".join(FORMAT.pack_masks(leaders, masks)))
    np.testing.assert_array_equal(got, masks)
    assert_same(leaders, inputs)


@pytest.mark.parametrize("change", [lambda content: content[:-4], lambda content: content + b"\0" * 4])
def test_a_step_of_another_size_is_refused(change: Callable[[bytes], bytes]) -> None:
    with pytest.raises(ValueError, match="a step of"):
        FORMAT.unpack(change(content_of(step(SamplerVariant.GREEDY), [])))


def test_every_feature_can_be_written_on_a_follower() -> None:
    writes = [FeatureWrite(name, 1, any_row(name, FORMAT.state_shape)) for name in STATEFUL]
    _, got = FORMAT.unpack(content_of(step(SamplerVariant.GREEDY), writes))
    assert [write.name for write in got] == list(STATEFUL)
