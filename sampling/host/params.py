"""What one request asks of the sampler and of its own length."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MAX_STOP_TOKEN_IDS = 64
MAX_EOS_TOKEN_IDS = 64  # of a model
MAX_LOGIT_BIAS = 1024  # entries
MAX_BIAS = 100.0  # either way
MAX_BAD_WORDS = 256  # sequences of token ids
MAX_BAD_WORD_TOKENS = 16  # of one sequence
MAX_LOGPROBS = 20  # alternatives of one token
MAX_LOGPROB_TOKEN_IDS = 64
MAX_PENALTY = 2.0  # presence and frequency, either way
MAX_REPETITION_PENALTY = 10.0
MAX_TOP_N_SIGMA = 1000.0
MAX_DRY_MULTIPLIER = 100.0
MAX_DRY_BASE = 10.0
MAX_INT32 = 2**31 - 1
MAX_SEED = 2**63 - 1


_RANGES: Mapping[str, tuple[float, float | None]] = {  # inclusive; None: no limit of its own
    "max_tokens": (1, None),
    "temperature": (0.0, 2.0),
    "min_p": (0.0, 1.0),
    "top_n_sigma": (0.0, MAX_TOP_N_SIGMA),
    "presence_penalty": (-MAX_PENALTY, MAX_PENALTY),
    "frequency_penalty": (-MAX_PENALTY, MAX_PENALTY),
    "dry_multiplier": (0.0, MAX_DRY_MULTIPLIER),
    "dry_base": (1.0, MAX_DRY_BASE),
    "dry_allowed_length": (1, MAX_INT32),
    "dry_penalty_last_n": (-1, MAX_INT32),
    "xtc_probability": (0.0, 1.0),
    "xtc_threshold": (0.0, 1.0),
    "min_tokens": (0, None),
}
_ABOVE_ZERO: Mapping[str, float] = {"top_p": 1.0, "typical_p": 1.0, "repetition_penalty": MAX_REPETITION_PENALTY}
_WHOLE = ("max_tokens", "top_k", "dry_allowed_length", "dry_penalty_last_n", "min_tokens")
_WHOLE_OR_NONE = ("seed", "logprobs", "prompt_logprobs")


class InvalidParameter(ValueError):
    """A parameter outside its limits; `param` is its wire name."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Frozen and checked at construction, so that everything behind the edge may trust it.

    Whether token ids are of the vocabulary is for `check_token_ids`, which knows its size.

    Raises:
        InvalidParameter: a value is outside its limits; the message names the parameter,
            the value and the limit.
    """

    max_tokens: int = 16
    temperature: float = 1.0  # 0 is greedy
    top_k: int = 0  # 0 keeps the whole vocabulary
    top_p: float = 1.0  # 1 keeps the whole distribution
    min_p: float = 0.0  # relative to the most probable token's probability
    typical_p: float = 1.0  # 1 keeps the whole distribution
    top_n_sigma: float = 0.0  # standard deviations below the best logit; 0 keeps the whole vocabulary
    presence_penalty: float = 0.0  # of logits of tokens in the output
    frequency_penalty: float = 0.0  # for each time a token is in the output
    repetition_penalty: float = 1.0  # divides (or, of negative ones, multiplies) logits of tokens in prompt or output
    dry_multiplier: float = 0.0  # 0 is off
    dry_base: float = 1.75
    dry_allowed_length: int = 2  # tokens that may repeat for nothing
    dry_penalty_last_n: int = -1  # tokens looked back at; -1: all
    dry_breaker_ids: tuple[int, ...] = ()  # tokens that no repeated sequence reaches across
    xtc_probability: float = 0.0  # of leaving the top choices out; 0 is off
    xtc_threshold: float = 0.1  # probability from which on a token is a top choice
    min_tokens: int = 0  # no token that ends the request is sampled before
    seed: int | None = None  # None: the engine picks one
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logit_bias: tuple[tuple[int, float], ...] = ()  # token id, what is added to its logit
    allowed_token_ids: tuple[int, ...] | None = None  # None: all
    bad_words: tuple[tuple[int, ...], ...] = ()  # sequences of token ids that the output shall not have
    logprobs: int | None = None  # how many alternatives beside each token's own; None: not even that
    prompt_logprobs: int | None = None  # likewise, of the prompt's tokens
    logprob_token_ids: tuple[int, ...] = ()  # tokens whose logprobs are wanted wherever a token is sampled

    def __post_init__(self) -> None:
        self._check_types()
        for name, (lowest, highest) in _RANGES.items():
            self._check_range(name, lowest, highest)
        if self.top_k < -1:
            raise InvalidParameter(
                "top_k", f"top_k is {self.top_k}; it must be positive, or 0 or -1 for the whole vocabulary"
            )
        for name, most in _ABOVE_ZERO.items():
            value = getattr(self, name)
            if not 0.0 < value <= most:
                raise InvalidParameter(name, f"{name} is {value}; it must be above 0 and at most {most:g}")
        if self.min_tokens > self.max_tokens:
            raise InvalidParameter(
                "min_tokens", f"min_tokens is {self.min_tokens}; it must be at most max_tokens, {self.max_tokens}"
            )
        if self.seed is not None and not -MAX_SEED - 1 <= self.seed <= MAX_SEED:
            raise InvalidParameter("seed", f"seed is {self.seed}; it must fit in 64 bits")
        self._check_length("stop_token_ids", MAX_STOP_TOKEN_IDS)
        self._check_length("logprob_token_ids", MAX_LOGPROB_TOKEN_IDS)
        self._check_length("logit_bias", MAX_LOGIT_BIAS)
        if len({token_id for token_id, _ in self.logit_bias}) < len(self.logit_bias):
            raise InvalidParameter("logit_bias", "logit_bias names a token twice; each may have one bias")
        for token_id, bias in self.logit_bias:
            if not -MAX_BIAS <= bias <= MAX_BIAS:
                raise InvalidParameter(
                    "logit_bias",
                    f"logit_bias of token {token_id} is {bias}; it must be from {-MAX_BIAS:g} to {MAX_BIAS:g}",
                )
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise InvalidParameter("allowed_token_ids", "allowed_token_ids is empty; it must allow at least one token")
        self._check_length("bad_words", MAX_BAD_WORDS)
        for word in self.bad_words:
            if not 1 <= len(word) <= MAX_BAD_WORD_TOKENS:
                raise InvalidParameter(
                    "bad_words",
                    f"bad_words has an entry of {len(word)} tokens; each must have from 1 to {MAX_BAD_WORD_TOKENS}",
                )
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                self._check_range(name, 0, MAX_LOGPROBS)
        if self.logprob_token_ids and self.logprobs is None:
            raise InvalidParameter(
                "logprob_token_ids", "logprob_token_ids is given and logprobs is not; it needs logprobs, 0 at least"
            )

    def _check_types(self) -> None:
        """A wrong one would be found where nothing may fail any more: in the engine's thread."""
        for name in (*_RANGES, *_ABOVE_ZERO, "top_k", *_WHOLE_OR_NONE):
            value = getattr(self, name)
            if value is None and name in _WHOLE_OR_NONE:
                continue
            is_whole = name in _WHOLE or name in _WHOLE_OR_NONE
            if isinstance(value, bool) or not isinstance(value, int if is_whole else int | float):
                raise InvalidParameter(
                    name, f"{name} is {value!r}; it must be {'an integer' if is_whole else 'a number'}"
                )

    def check_token_ids(self, vocab_size: int) -> None:
        """
        Raises:
            InvalidParameter: a token id is not of the vocabulary.
        """
        named = {
            "stop_token_ids": self.stop_token_ids,
            "logit_bias": [token_id for token_id, _ in self.logit_bias],
            "allowed_token_ids": self.allowed_token_ids or (),
            "bad_words": [token_id for word in self.bad_words for token_id in word],
            "logprob_token_ids": self.logprob_token_ids,
            "dry_sequence_breakers": self.dry_breaker_ids,
        }
        for name, token_ids in named.items():
            _check_token_ids(name, token_ids, vocab_size)

    def _check_range(self, name: str, lowest: float, highest: float | None) -> None:
        value = getattr(self, name)
        if lowest <= value < math.inf and (highest is None or value <= highest):
            return
        wanted = f"at least {lowest:g}" if highest is None else f"from {lowest:g} to {highest:.10g}"
        raise InvalidParameter(name, f"{name} is {value}; it must be {wanted}")

    def _check_length(self, name: str, most: int) -> None:
        count = len(getattr(self, name))
        if count > most:
            raise InvalidParameter(name, f"{name} has {count} entries; at most {most} are allowed")


def _check_token_ids(name: str, token_ids: Sequence[int], vocab_size: int) -> None:
    if not token_ids:
        return
    if any(kind is not int for kind in set(map(type, token_ids))):
        raise InvalidParameter(name, f"{name} has something else than integers; token ids must be integers")
    lowest, highest = min(token_ids), max(token_ids)
    if lowest < 0 or highest >= vocab_size:
        wrong = lowest if lowest < 0 else highest
        raise InvalidParameter(name, f"{name} has {wrong}; token ids must be from 0 to {vocab_size - 1}")
