"""A sampler that is plain and slow: one row at a time, in float64, by sorting and by looking everywhere.

It is written from what the parameters mean (the docstrings of sampling/*.py and the sources they name), so that it
is a second opinion on the code there and shares nothing with it but `SamplingParams`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sampling.host.params import SamplingParams

LARGEST_DRY_PENALTY = 1e30


@dataclass(frozen=True)
class Request:
    """A request as it asks for its next token."""

    params: SamplingParams
    prompt: tuple[int, ...] = (0,)
    output: tuple[int, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    grammar: frozenset[int] | None = None  # the tokens that its grammar allows next; None: it has no grammar

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.prompt + self.output


class Distribution(NamedTuple):
    """Probabilities of all tokens, float64[vocab_size]; XTC throws a coin between two."""

    without_xtc: np.ndarray
    with_xtc: np.ndarray
    xtc_probability: float

    @property
    def total(self) -> np.ndarray:
        """The probability of each token before the coin falls."""
        return (1 - self.xtc_probability) * self.without_xtc + self.xtc_probability * self.with_xtc


def processed(logits: np.ndarray, request: Request) -> np.ndarray:
    """Logits after everything that changes them, float64[vocab_size]; -inf where banned."""
    params, output = request.params, request.output
    logits = logits.astype(np.float64)
    if params.allowed_token_ids is not None:
        logits = _only(logits, params.allowed_token_ids)
    for token_id, bias in params.logit_bias:
        logits[token_id] += bias
    if len(output) < params.min_tokens:
        logits[sorted(request.stop_ids)] = -np.inf
    for word in params.bad_words:
        before = word[:-1]
        if not before or output[-len(before) :] == before:
            logits[word[-1]] = -np.inf
    if request.grammar is not None:
        logits = _only(logits, sorted(request.grammar))
    return _with_dry(_with_penalties(logits, request), request)


def best_token(logits: np.ndarray, request: Request) -> int:
    """What temperature 0 gives: the first of the best, or what stands for NaN or for no token."""
    vocab_size = len(logits)
    if np.isnan(logits).any():
        return vocab_size
    final = processed(logits, request)
    return vocab_size + 1 if final.max() == -np.inf else int(final.argmax())


def distribution(logits: np.ndarray, request: Request) -> Distribution:
    """What a temperature above 0 draws from."""
    params, final = request.params, processed(logits, request)
    scaled = (final - final.max()) / params.temperature
    weights = np.exp(scaled)
    weights[final < _lowest_of_top_n_sigma(final, params.top_n_sigma)] = 0.0
    weights[weights < params.min_p * weights.max()] = 0.0
    weights = top_k(weights, params.top_k)
    weights = typical_p(weights, params.typical_p)
    weights = top_p(weights, params.top_p)
    without = weights / weights.sum()
    spared = xtc(weights, params.xtc_threshold)
    return Distribution(without, spared / spared.sum(), params.xtc_probability)


def top_k(weights: np.ndarray, k: int) -> np.ndarray:
    """Weights of the k largest, and of their equals; 0 in the place of the others."""
    if k < 1 or k >= len(weights):
        return weights
    return np.where(weights >= np.sort(weights)[-k], weights, 0.0)


def top_p(weights: np.ndarray, p: float) -> np.ndarray:
    """Weights of the fewest most probable tokens whose share is p, and of their equals."""
    return weights if p >= 1.0 else _first_with_share(weights, -weights, p)


def typical_p(weights: np.ndarray, p: float) -> np.ndarray:
    """Weights of the fewest tokens, those of the most usual surprise first, whose share is p, and of their equals."""
    if p >= 1.0:
        return weights
    return _first_with_share(weights, typical_distance(weights), p)


def typical_distance(weights: np.ndarray) -> np.ndarray:
    """How far each token's surprise, in nats, is from what is to be expected: from the entropy."""
    probability = weights / weights.sum()
    is_left = probability > 0.0
    surprise = np.full(len(weights), np.inf)
    surprise[is_left] = -np.log(probability[is_left])
    entropy = (probability[is_left] * surprise[is_left]).sum()
    return np.abs(surprise - entropy)


def xtc(weights: np.ndarray, threshold: float) -> np.ndarray:
    """Weights without the top choices but the least probable of them, of equals the last."""
    least = threshold * weights.sum()
    top = [token for token in np.flatnonzero(weights) if weights[token] >= least]
    spared = min(top, key=lambda token: (weights[token], -token), default=None)
    weights = weights.copy()
    weights[[token for token in top if token != spared]] = 0.0
    return weights


def logprobs(logits: np.ndarray) -> np.ndarray:
    """Natural logarithms of the probabilities that the model gives, float64[vocab_size]."""
    shifted = logits.astype(np.float64) - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def _only(logits: np.ndarray, token_ids: Sequence[int]) -> np.ndarray:
    left = np.full_like(logits, -np.inf)
    left[list(token_ids)] = logits[list(token_ids)]
    return left


def _with_penalties(logits: np.ndarray, request: Request) -> np.ndarray:
    params = request.params
    for token in set(request.token_ids):
        if logits[token] > -np.inf:
            factor = params.repetition_penalty
            logits[token] = logits[token] / factor if logits[token] > 0 else logits[token] * factor
    for token, count in Counter(request.output).items():
        logits[token] -= params.frequency_penalty * count + params.presence_penalty
    return logits


def _with_dry(logits: np.ndarray, request: Request) -> np.ndarray:
    params = request.params
    if params.dry_multiplier == 0.0:
        return logits
    tokens = request.token_ids
    if params.dry_penalty_last_n >= 0:
        tokens = tokens[max(len(tokens) - params.dry_penalty_last_n, 0) :]
    for token in set(tokens) - set(params.dry_breaker_ids):
        length = longest_repeat(tokens, token, params.dry_breaker_ids)
        if length >= max(params.dry_allowed_length, 1):
            penalty = params.dry_multiplier * params.dry_base ** (length - params.dry_allowed_length)
            logits[token] -= min(penalty, LARGEST_DRY_PENALTY)
    return logits


def longest_repeat(tokens: tuple[int, ...], token: int, breakers: Sequence[int]) -> int:
    """The largest number of last tokens, no breaker among them, that with `token` after them are there already."""
    for length in range(len(tokens) - 1, 0, -1):
        repeated = (*tokens[-length:], token)
        starts = range(len(tokens) - length)
        if set(breakers).isdisjoint(repeated[:-1]) and any(tokens[i : i + length + 1] == repeated for i in starts):
            return length
    return 0


def _lowest_of_top_n_sigma(logits: np.ndarray, n: float) -> float:
    if n == 0.0:
        return -np.inf
    return float(logits.max() - n * logits[logits > -np.inf].std())


def _first_with_share(weights: np.ndarray, keys: np.ndarray, share: float) -> np.ndarray:
    """Weights of the fewest tokens in the order of their keys that have this share of all, and of the last's equals."""
    order = np.argsort(keys, kind="stable")
    running = np.cumsum(weights[order])
    last = int(np.argmax(running >= share * running[-1]))
    return np.where(keys <= keys[order[last]], weights, 0.0)
