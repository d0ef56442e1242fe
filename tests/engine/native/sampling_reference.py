"""What the sampler draws, in float64 and by sorting."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sampling.rows import (
    MIN_P,
    TEMPERATURE,
    TOP_K,
    TOP_N_SIGMA,
    TOP_P,
    TYPICAL_P,
    XTC_PROBABILITY,
    XTC_THRESHOLD,
    SamplingRows,
)

SMALLEST = float(np.finfo(np.float32).tiny)  # weights below may count as 0


class Row(NamedTuple):
    """What cuts one row's distribution."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float

    @classmethod
    def of(cls, rows: SamplingRows, row: int) -> Row:
        floats = rows.floats[row].astype(np.float64)
        return cls(
            temperature=floats[TEMPERATURE], top_k=int(rows.ints[row, TOP_K]), top_p=floats[TOP_P],
            min_p=floats[MIN_P], typical_p=floats[TYPICAL_P], top_n_sigma=floats[TOP_N_SIGMA],
            xtc_probability=floats[XTC_PROBABILITY], xtc_threshold=floats[XTC_THRESHOLD],
        )  # fmt: skip


def weights_of(logits: np.ndarray, row: Row, uniform: float, slack: float = 0.0) -> np.ndarray:
    """Weights of the tokens that are left, 0 of the others, float64[vocab_size].

    Args:
        logits: float32[vocab_size] without NaN, of which some are finite and none is +inf.
        uniform: decides whether XTC cuts.
        slack: relative, of the shares and thresholds, for what rounding may do to them.
    """
    best = logits.max()
    centred = np.where(logits == best, np.float32(0), logits - best)
    scaled = centred.astype(np.float64) / row.temperature
    keep = scaled >= (np.log(row.min_p) * (1 + slack) if row.min_p > 0 else -np.inf)
    if row.top_n_sigma > 0:
        deviation = centred[centred > -np.inf].astype(np.float64).std()
        keep &= centred >= -row.top_n_sigma * deviation * (1 + slack)
    if row.top_k > 0:
        keep &= centred >= np.sort(np.where(keep, centred, -np.inf))[-min(row.top_k, len(centred))]
    weights = np.where(keep, np.exp(scaled), 0.0)
    weights[weights < SMALLEST] = 0.0
    if row.typical_p < 1:
        surprise = -np.log(np.where(weights > 0, weights / weights.sum(), 1.0))
        distance = np.abs(surprise - (weights * surprise).sum() / weights.sum())
        weights = keep_share(weights, np.where(weights > 0, distance, np.inf), row.typical_p * (1 + slack))
    if row.top_p < 1:
        weights = keep_share(weights, -weights, row.top_p * (1 + slack))
    if uniform < row.xtc_probability:
        is_top = (weights > 0) & (weights >= row.xtc_threshold * weights.sum() * (1 + slack))
        if is_top.any():
            least = weights[is_top].min()
            spared = np.flatnonzero(is_top & (weights == least))[-1]
            weights[is_top] = 0.0
            weights[spared] = least
    return weights


def keep_share(weights: np.ndarray, order_by: np.ndarray, share: float) -> np.ndarray:
    """The first ones by `order_by` until they have the share, and what ties with the last of them."""
    order = np.argsort(order_by, kind="stable")
    reached = np.searchsorted(np.cumsum(weights[order]), share * weights.sum())
    return np.where(order_by <= order_by[order[min(reached, len(order) - 1)]], weights, 0.0)


def token_at(weights: np.ndarray, uniform: float) -> int:
    """Where the running sum passes a share of the total."""
    running = np.cumsum(weights)
    beyond = np.flatnonzero((running > uniform * running[-1]) & (weights > 0))
    return int(beyond[0] if len(beyond) else np.flatnonzero(weights)[-1])


def is_right(token: int, logits: np.ndarray, row: Row, uniforms: np.ndarray, rounding: float = 2e-6) -> bool:
    """Whether it is the token of exact arithmetic, or one that rounding to float32 may make of it.

    Args:
        uniforms: float32[2], of the draw and of XTC.
        rounding: relative, of a sum over the vocabulary.
    """
    uniform, of_xtc = uniforms.astype(np.float64)
    return any(
        token == token_at(weights_of(logits, row, of_xtc, slack), uniform + shift)
        for slack in (0.0, rounding, -rounding)
        for shift in (0.0, rounding, -rounding)
    )
