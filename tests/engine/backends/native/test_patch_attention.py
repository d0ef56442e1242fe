"""Attention of patches to each other against float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from engine.backends.base.patches import Patches, patches
from engine.backends.native.patch_attention import attend_patches
from engine.backends.xla import patch_attention as portable

NUM_HEADS = 2


def reference(
    qkv: np.ndarray, num_real: int, first: np.ndarray, last: np.ndarray, angles: np.ndarray | None
) -> np.ndarray:
    """[num_real, NUM_HEADS * size]."""
    q, k, v = (each.reshape(len(qkv), NUM_HEADS, -1)[:num_real] for each in np.split(qkv.astype(np.float64), 3, axis=1))
    if angles is not None:
        turns = np.exp(1j * angles.astype(np.float64))[:num_real, None]
        turned = [
            np.asarray((each[..., : turns.shape[-1]] + 1j * each[..., turns.shape[-1] :]) * turns) for each in (q, k)
        ]
        q, k = (np.concatenate([each.real, each.imag], axis=-1) for each in turned)
    scores = np.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
    place = np.arange(num_real)
    sees = (first[:num_real, None] <= place) & (place <= last[:num_real, None])
    weights = np.where(sees, np.exp(scores - scores.max(axis=-1, keepdims=True)), 0)
    weights /= weights.sum(axis=-1, keepdims=True)
    made: np.ndarray = np.einsum("hqk,khd->qhd", weights, v).reshape(num_real, -1)
    return made


def in_windows(num_patches: int, num_real: int, sizes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The first and the last patch that each one sees, of windows of these sizes in turn."""
    first, last = np.zeros(num_patches, np.int32), np.zeros(num_patches, np.int32)
    begin = 0
    while begin < num_real:
        end = min(begin + sizes[begin % len(sizes)], num_real)
        first[begin:end], last[begin:end] = begin, end - 1
        begin = end
    return first, last


def attended(attend: Any, qkv: np.ndarray, which: Patches, angles: np.ndarray | None, *, is_exact: bool) -> np.ndarray:
    def compute(joined: jax.Array) -> jax.Array:
        turns, scale = None if angles is None else jnp.asarray(angles), (joined.shape[1] // (3 * NUM_HEADS)) ** -0.5
        made: jax.Array = attend(joined, which, num_heads=NUM_HEADS, scale=scale, angles=turns, is_exact=is_exact)
        return made

    return np.asarray(jax.jit(compute)(qkv))


@dataclass(frozen=True)
class Case:
    """Patches of random features, and what each one sees."""

    size: int = 16
    num_patches: int = 150  # of which the last ones are in a block and a tile that are not whole
    num_real: int | None = None
    is_rotated: bool = False
    windows: tuple[int, ...] = ()

    def check(self, attend: Any, *, is_exact: bool = True, padding: float = np.nan, tolerance: float = 2e-5) -> None:
        random, count = np.random.default_rng(7), self.num_real or self.num_patches
        qkv = random.standard_normal((self.num_patches, 3 * NUM_HEADS * self.size)).astype(np.float32)
        angles = random.uniform(0, 30, (self.num_patches, self.size // 2)).astype(np.float32)
        turns = angles if self.is_rotated else None
        which = patches(self.num_patches, None if self.num_real is None else jnp.int32(count))
        first, last = np.zeros(self.num_patches, np.int32), np.full(self.num_patches, count - 1, np.int32)
        if self.windows:
            first, last = in_windows(self.num_patches, count, self.windows)
            which = which._replace(first_seen=jnp.asarray(first), last_seen=jnp.asarray(last))
        qkv[count:] = padding
        made = attended(attend, qkv, which, turns, is_exact=is_exact)[:count]
        np.testing.assert_allclose(made, reference(qkv, count, first, last, turns), atol=tolerance)


ALL = Case(72, num_real=129, is_rotated=True, windows=(20, 3, 64, 1))


@pytest.mark.parametrize("case", [ALL, Case(72), Case(80, num_patches=7, is_rotated=True)], ids=str)
@pytest.mark.parametrize(("is_exact", "tolerance"), [(True, 2e-5), (False, 0.06)])
def test_patches_attend(variant, case, is_exact, tolerance):
    case.check(attend_patches, is_exact=is_exact, tolerance=tolerance)


@pytest.mark.parametrize("case", [ALL, Case(is_rotated=True)], ids=str)
def test_patches_attend_through_xla(case):
    case.check(portable.attend_patches, padding=0.0)


def test_a_window_is_the_same_whatever_is_beside_it(variant):
    """As long as it begins at the same place, because blocks of keys do."""
    random = np.random.default_rng(8)
    qkv = random.standard_normal((150, 3 * NUM_HEADS * 16)).astype(np.float32)
    first, last = in_windows(150, 150, (50,))
    which = patches(150)._replace(first_seen=jnp.asarray(first), last_seen=jnp.asarray(last))
    before = attended(attend_patches, qkv, which, None, is_exact=False)
    qkv[:50] = qkv[100:] = 9.0
    after = attended(attend_patches, qkv, which, None, is_exact=False)
    np.testing.assert_array_equal(before[50:100], after[50:100])
    assert (before[:50] != after[:50]).any()
