"""How the sampler and the reference are compared."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
from scipy.special import chdtrc

from sampling.draw import uniforms
from sampling.host.params import SamplingParams
from sampling.host.rows import SEED_LOW, SamplerVariant
from sampling.sampler import SamplerBackend
from tests.sampling.batches import NUM_ROWS, apply_alone, batch_of, random_logits, tokens_of
from tests.sampling.reference import Request, best_token, distribution, processed

ROUNDING = 2e-5  # of shares and of logits, relative; float32 sums over a vocabulary of hundreds
LEAST_CHANCE = 1e-4  # of a chi-square so large; seeds are fixed, so a test of a right sampler fails never or always

_uniforms = jax.jit(uniforms)


def assert_feature_alone(name: str, requests: Sequence[Request], logits: np.ndarray) -> None:
    """A feature changes logits as the reference does, and of a bystander not a bit."""
    everyone = [*requests, Request(SamplingParams(), output=(1, 2, 1, 2))]
    all_logits = np.concatenate([logits, logits[:1]])
    changed = apply_alone(name, batch_of(everyone, all_logits, num_rows=-(-len(everyone) // 8) * 8))
    for row, request in enumerate(requests):
        expected = processed(logits[row], request)
        np.testing.assert_allclose(changed[row], expected, rtol=1e-6, atol=1e-5, err_msg=f"row {row}: {request}")
    assert changed[len(requests)].tobytes() == all_logits[-1].tobytes()


def assert_follows(
    backend: SamplerBackend,
    requests: Sequence[Request],
    logits: np.ndarray,
    *,
    seeds: Sequence[int] | None = None,
    level: SamplerVariant = SamplerVariant.FULL,
) -> np.ndarray:
    """Every token of a batch is the one that the reference finds, with the same random numbers.

    Returns:
        The tokens.
    """
    batch = batch_of(requests, logits, seeds=seeds)
    tokens = tokens_of(backend, batch, level)[: len(requests)]
    uniform = np.asarray(_uniforms(batch.rows))
    for row, (token, request) in enumerate(zip(tokens.tolist(), requests, strict=True)):
        assert token in _acceptable(logits[row], request, uniform[row]), f"row {row}: {token} of {request}"
    return tokens


def _acceptable(logits: np.ndarray, request: Request, uniform: np.ndarray) -> set[int]:
    """The reference's token, and where that is a matter of rounding its neighbours."""
    best = best_token(logits, request)
    if best >= len(logits):
        return {best}
    if request.params.temperature == 0.0:
        final = processed(logits, request)
        return set(np.flatnonzero(final >= final[best] - ROUNDING * max(1.0, abs(final[best]))).tolist())
    both = distribution(logits, request)
    probability = both.with_xtc if uniform[1] < both.xtc_probability else both.without_xtc
    possible = np.flatnonzero(probability)
    running = np.cumsum(probability[possible])
    first, last = np.searchsorted(running, [uniform[0] - ROUNDING, uniform[0] + ROUNDING], side="right")
    return set(possible[first : last + 1].tolist())


def assert_frequencies(tokens: np.ndarray, probability: np.ndarray, what: object = "") -> None:
    """Draws are as frequent as they are probable, and never impossible."""
    counts = np.bincount(tokens, minlength=len(probability))
    assert len(counts) == len(probability), f"{counts.argmax()} is no token; {what}"
    assert counts[probability == 0].sum() == 0, f"drew {np.flatnonzero(counts * (probability == 0))}; {what}"
    expected = probability * len(tokens)
    is_large = expected >= 5  # smaller cells do not follow the chi-square distribution; together they are one
    observed = np.append(counts[is_large], counts[~is_large].sum())
    wanted = np.append(expected[is_large], expected[~is_large].sum())
    observed, wanted = observed[wanted > 1e-9], wanted[wanted > 1e-9]
    chi_square = ((observed - wanted) ** 2 / wanted).sum()
    degrees = len(wanted) - 1
    assert degrees == 0 or chdtrc(degrees, chi_square) > LEAST_CHANCE, f"{chi_square} of {degrees}; {what}"


def draws_of(backend: SamplerBackend, requests: Sequence[Request], logits: np.ndarray, *, num_draws: int) -> np.ndarray:
    """Tokens of each request with as many seeds, int32[num_requests, num_draws or a few more]."""
    per_call = NUM_ROWS // len(requests)
    num_rows = per_call * len(requests)
    batch = batch_of([*requests] * per_call, np.tile(logits, (per_call, 1)))
    calls = []
    for call in range(-(-num_draws // per_call)):
        batch.rows.ints[:num_rows, SEED_LOW] = np.arange(num_rows) // len(requests) + call * per_call
        calls.append(tokens_of(backend, batch)[:num_rows].reshape(per_call, len(requests)))
    return np.concatenate(calls).T


def assert_draws(backend: SamplerBackend, request: Request, *, seed: int = 0, vocab_size: int = 600) -> None:
    """The draws of a request follow the exact probabilities of random logits."""
    logits = random_logits(seed, 1, vocab_size, spread=1.5)
    (tokens,) = draws_of(backend, [request], logits, num_draws=2048)
    assert_frequencies(tokens, distribution(logits[0], request).total, request)
