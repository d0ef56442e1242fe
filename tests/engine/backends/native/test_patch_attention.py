"""Attention of patches to each other against float64."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from engine.backends.base.patches import Patches, patches
from engine.backends.native.patch_attention import attend_patches
from engine.backends.xla import patch_attention as portable

NUM_HEADS = 2
FEW, MANY = 7, 150  # of the second, the last ones are in a block and a tile that are not whole


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


def in_windows(num_patches: int, num_real: int, sizes: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """The first and the last patch that each one sees, of windows of these sizes in turn."""
    first, last = np.zeros(num_patches, np.int32), np.zeros(num_patches, np.int32)
    begin = 0
    while begin < num_real:
        end = min(begin + sizes[begin % len(sizes)], num_real)
        first[begin:end], last[begin:end] = begin, end - 1
        begin = end
    return first, last


def attended(attend: Any, qkv: np.ndarray, which: Patches, angles: np.ndarray | None, *, is_exact: bool) -> np.ndarray:
    size = qkv.shape[1] // (3 * NUM_HEADS)
    made = attend(
        jnp.asarray(qkv), which, num_heads=NUM_HEADS, scale=size**-0.5,
        angles=None if angles is None else jnp.asarray(angles), is_exact=is_exact,
    )  # fmt: skip
    return np.asarray(made)


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize(("size", "is_rotated"), [(72, True), (80, False)])
@pytest.mark.parametrize(("num_patches", "num_real"), [(FEW, None), (MANY, None), (MANY, 129)])
@pytest.mark.parametrize("windows", [None, [20, 3, 64, 1]])
def test_patches_attend(size, is_rotated, num_patches, num_real, windows):
    random = np.random.default_rng(7)
    qkv = random.standard_normal((num_patches, 3 * NUM_HEADS * size)).astype(np.float32)
    angles = random.uniform(0, 30, (num_patches, size // 2)).astype(np.float32) if is_rotated else None
    which, count = patches(num_patches, None if num_real is None else jnp.int32(num_real)), num_real or num_patches
    first, last = np.zeros(num_patches, np.int32), np.full(num_patches, count - 1, np.int32)
    if windows is not None:
        first, last = in_windows(num_patches, count, windows)
        which = which._replace(first_seen=jnp.asarray(first), last_seen=jnp.asarray(last))
    qkv[count:] = np.nan  # padding is nobody's
    expected = reference(qkv, count, first, last, angles)
    exact = attended(attend_patches, qkv, which, angles, is_exact=True)[:count]
    np.testing.assert_allclose(exact, expected, atol=2e-5)
    rounded = attended(attend_patches, qkv, which, angles, is_exact=False)[:count]
    np.testing.assert_allclose(rounded, expected, atol=0.06)
    qkv[count:] = 0
    by_xla = attended(portable.attend_patches, qkv, which, angles, is_exact=True)[:count]
    np.testing.assert_allclose(by_xla, expected, atol=2e-5)


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize("is_exact", [True, False])
def test_a_window_is_the_same_whatever_is_beside_it(is_exact):
    """As long as it begins at the same place, because blocks of keys do."""
    random = np.random.default_rng(8)
    qkv = random.standard_normal((MANY, 3 * NUM_HEADS * 16)).astype(np.float32)
    first, last = in_windows(MANY, MANY, [50])
    which = patches(MANY)._replace(first_seen=jnp.asarray(first), last_seen=jnp.asarray(last))
    before = attended(attend_patches, qkv, which, None, is_exact=is_exact)
    qkv[:50] = qkv[100:] = 9.0
    after = attended(attend_patches, qkv, which, None, is_exact=is_exact)
    np.testing.assert_array_equal(before[50:100], after[50:100])
    assert (before[:50] != after[:50]).any()
