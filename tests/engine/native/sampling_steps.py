"""Steps of the sampler with requests of random parameters, through the features' own states."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import jax
import numpy as np

from sampling.feature import Admission, StateShape, pack
from sampling.params import SamplingParams
from sampling.rows import POSITION, SamplingRows
from sampling.state import FeatureStates, row_of
from sampling.usage import GRAMMAR, used_features, uses_bits

NUM_SLOTS = 70
MAX_LENGTH = 96
FEW = 5  # tokens of which histories and bad words are made, so that they repeat

# Everything that a request may ask for beside temperature.
CUTS = ("top_k", "top_p", "min_p", "typical_p", "top_n_sigma", "xtc")
ADJUSTMENTS = (
    "allowed_tokens", "logit_bias", "min_tokens", "bad_words", GRAMMAR, "presence_penalty", "frequency_penalty",
    "repetition_penalty", "dry",
)  # fmt: skip
ALL = (*CUTS, *ADJUSTMENTS, "logprobs")


class Request(NamedTuple):
    params: SamplingParams
    has_grammar: bool = False


class Step(NamedTuple):
    states: FeatureStates  # of numpy arrays
    rows: SamplingRows
    mask: np.ndarray


def make_logits(random: np.random.Generator, num_rows: int, vocab_size: int, kind: str) -> np.ndarray:
    """float32[num_rows, vocab_size]; `peaked` looks like a model's, of `ties` many are equal."""
    logits = random.standard_normal((num_rows, vocab_size)) * {"flat": 0.3}.get(kind, 3.0)
    if kind == "peaked":
        for row in logits:
            row[random.integers(0, vocab_size, 8)] += random.uniform(5, 20, 8)
    return (np.round(logits) + 0.0 if kind == "ties" else logits).astype(np.float32)


def make_request(random: np.random.Generator, vocab_size: int, names: Collection[str]) -> Request:
    """Parameters that use what is named, each somewhere in its range."""

    def tokens(count: int, below: int = vocab_size) -> tuple[int, ...]:
        return tuple(map(int, random.permutation(below)[:count]))

    def words() -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(map(int, random.integers(0, min(FEW, vocab_size), random.integers(1, 4)))) for _ in range(20)
        )

    uniform = random.uniform
    make = {
        "top_k": lambda: {"top_k": int(random.choice([1, 2, 20, 64, 65, 300, vocab_size, 10 * vocab_size]))},
        "top_p": lambda: {"top_p": uniform(0.05, 0.999)},
        "min_p": lambda: {"min_p": float(random.choice([1e-4, 0.01, 0.3, 1.0]))},
        "typical_p": lambda: {"typical_p": uniform(0.1, 0.99)},
        "top_n_sigma": lambda: {"top_n_sigma": uniform(0.5, 3)},
        "xtc": lambda: {
            "xtc_probability": float(random.choice([0.5, 1.0])),
            "xtc_threshold": float(random.choice([0.0, 0.01, 0.1, 0.5])),
        },
        "allowed_tokens": lambda: {"allowed_token_ids": tokens(max(1, vocab_size // 2))},
        "logit_bias": lambda: {"logit_bias": tuple((token, uniform(-20, 20)) for token in tokens(300))},
        "min_tokens": lambda: {"min_tokens": int(random.integers(1, 16)), "stop_token_ids": tokens(5)},
        "bad_words": lambda: {"bad_words": words()},
        "presence_penalty": lambda: {"presence_penalty": uniform(-2, 2)},
        "frequency_penalty": lambda: {"frequency_penalty": uniform(-2, 2)},
        "repetition_penalty": lambda: {"repetition_penalty": uniform(0.5, 2)},
        "dry": lambda: {
            "dry_multiplier": uniform(0.1, 5),
            "dry_allowed_length": int(random.integers(1, 4)),
            "dry_penalty_last_n": int(random.choice([-1, 0, 5, 40])),
            "dry_breaker_ids": tokens(int(random.integers(0, 3)), min(FEW + 1, vocab_size)),
        },
        "logprobs": lambda: {"logprobs": 20, "logprob_token_ids": tokens(10)},
    }
    given = {key: value for name in names if name != GRAMMAR for key, value in make[name]().items()}
    params = SamplingParams(max_tokens=16, **{"temperature": uniform(0.3, 1.5), **given})
    return Request(params, GRAMMAR in names)


def make_step(
    random: np.random.Generator, requests: Sequence[Request | None], vocab_size: int, num_slots: int = NUM_SLOTS
) -> Step:
    """A row for each request, in slots of any order; None is padding."""
    shape = StateShape(num_slots, vocab_size, MAX_LENGTH)
    states = FeatureStates.allocate(shape, lambda size, dtype: np.full(size, 7, dtype))
    rows = SamplingRows.padding(len(requests), num_slots)
    mask = np.zeros((len(requests), shape.num_words), np.uint32)
    slots = iter(random.permutation(num_slots))
    for row, request in enumerate(requests):
        if request is None:
            continue
        slot = next(slots)
        position = int(random.integers(1, MAX_LENGTH))
        tokens = random.integers(0, min(FEW, vocab_size), position).astype(np.int32)
        num_prompt = int(random.integers(1, position + 1))
        admission = Admission(request.params, tokens, num_prompt, frozenset(request.params.stop_token_ids))
        for name in used_features(request.params):
            jax.tree.map(
                lambda array, new, slot=slot: array.__setitem__(slot, new),
                getattr(states, name), row_of(name, admission, shape),
            )  # fmt: skip
        if request.has_grammar:
            mask[row] = pack(random.permutation(vocab_size)[: max(1, vocab_size * 9 // 10)], shape)
        bits = uses_bits(request.params, has_grammar=request.has_grammar)
        seed = int(random.integers(0, 2**63))
        rows.set(row, slot, request.params, seed=seed, num_prompt_tokens=num_prompt, uses=bits)
        rows.ints[row, POSITION] = position
    return Step(states, rows, mask)
