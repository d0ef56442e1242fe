"""Requests that use any features in any combination."""

from __future__ import annotations

import numpy as np

from sampling.host.params import MAX_LOGIT_BIAS, SamplingParams
from tests.sampling.reference import Request

SHARE = 0.3  # of the requests that use a feature


def random_request(seed: int, vocab_size: int, *, temperature: float | None = None) -> Request:
    """The same for the same arguments. Its sequences are of few different tokens, so that they repeat."""
    random = np.random.default_rng(seed)

    def token() -> int:
        return int(random.integers(vocab_size))

    def sequence(least: int, most: int) -> tuple[int, ...]:
        return tuple(random.integers(0, 4, random.integers(least, most + 1)).tolist())

    def some(least: int) -> tuple[int, ...]:
        return tuple(random.choice(vocab_size, int(random.integers(least, vocab_size + 1)), replace=False).tolist())

    def uniform(low: float, high: float) -> float:
        return float(random.uniform(low, high))

    prompt, output = sequence(1, 20), sequence(0, 40)
    wishes = {
        "top_k": lambda: int(random.choice([1, 2, 10, 50, vocab_size + 1])),
        "top_p": lambda: uniform(0.1, 1.0),
        "min_p": lambda: uniform(0.0, 0.3),
        "typical_p": lambda: uniform(0.2, 1.0),
        "top_n_sigma": lambda: uniform(0.2, 3.0),
        "presence_penalty": lambda: uniform(-2.0, 2.0),
        "frequency_penalty": lambda: uniform(-0.5, 0.5),
        "repetition_penalty": lambda: uniform(0.5, 2.0),
        "min_tokens": lambda: len(output) + int(random.integers(0, 2)),
        "logit_bias": lambda: tuple((bias, uniform(-5.0, 5.0)) for bias in some(1)[:MAX_LOGIT_BIAS]),
        "allowed_token_ids": lambda: some(1),
        "bad_words": lambda: tuple((*sequence(0, 3), token()) for _ in range(1 + token() % 8)),
        "logprobs": lambda: int(random.integers(0, 21)),
    }
    params = {name: wish() for name, wish in wishes.items() if random.random() < SHARE}
    if random.random() < SHARE:
        params |= dict(
            dry_multiplier=uniform(0.1, 2.0), dry_base=uniform(1.0, 1.5), dry_allowed_length=int(random.integers(1, 4)),
            dry_penalty_last_n=int(random.choice([-1, 0, 5, 30])), dry_breaker_ids=sequence(0, 1),
        )  # fmt: skip
    if random.random() < SHARE:
        params |= dict(xtc_probability=uniform(0.1, 1.0), xtc_threshold=uniform(0.0, 0.3))
    chosen = temperature if temperature is not None else random.choice([0.0, uniform(0.2, 2.0)])
    grammar = frozenset(some(1)) if random.random() < SHARE else None
    stop_ids = frozenset({0, token(), token()})
    return Request(
        SamplingParams(max_tokens=100, temperature=float(chosen), **params), prompt, output, stop_ids, grammar
    )


def random_requests(seed: int, count: int, vocab_size: int, *, temperature: float | None = None) -> list[Request]:
    return [random_request(1000 * seed + index, vocab_size, temperature=temperature) for index in range(count)]
