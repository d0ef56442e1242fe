"""The sampling parameters of one request, and the limit of its length."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from types import NoneType, UnionType
from typing import Annotated, NamedTuple, TypeAlias, Union, get_args, get_origin, get_type_hints

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


@dataclass(frozen=True, slots=True)
class Between:
    """Limits of a number, both inclusive; None: it has no upper limit of its own."""

    lowest: float
    highest: float | None = None

    def allows(self, value: float) -> bool:
        return self.lowest <= value < math.inf and (self.highest is None or value <= self.highest)

    def __str__(self) -> str:
        lowest = f"{self.lowest:g}"
        return f"at least {lowest}" if self.highest is None else f"from {lowest} to {self.highest:.10g}"


@dataclass(frozen=True, slots=True)
class AboveZero:
    """Limits of a number that is positive; the highest value is inclusive."""

    highest: float

    def allows(self, value: float) -> bool:
        return 0.0 < value <= self.highest

    def __str__(self) -> str:
        return f"above 0 and at most {self.highest:g}"


Limits: TypeAlias = Between | AboveZero


class InvalidParameter(ValueError):
    """A parameter outside its limits; `param` is its wire name."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param

    def renamed(self, param: str) -> InvalidParameter:
        """The same error about a parameter of another name."""
        return InvalidParameter(param, str(self))


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The sampling parameters of one request, with their types and limits, checked; raises InvalidParameter."""

    max_tokens: Annotated[int, Between(1)] = 16
    temperature: Annotated[float, Between(0.0, 2.0)] = 1.0  # 0 is greedy
    top_p: Annotated[float, AboveZero(1.0)] = 1.0  # 1 keeps the whole distribution
    top_k: int = 0  # 0 keeps the whole vocabulary
    min_p: Annotated[float, Between(0.0, 1.0)] = 0.0  # relative to the most probable token's probability
    typical_p: Annotated[float, AboveZero(1.0)] = 1.0  # 1 keeps the whole distribution
    # Standard deviations below the best logit; 0 keeps the whole vocabulary.
    top_n_sigma: Annotated[float, Between(0.0, MAX_TOP_N_SIGMA)] = 0.0
    # Taken from the logits of tokens that are in the output.
    presence_penalty: Annotated[float, Between(-MAX_PENALTY, MAX_PENALTY)] = 0.0
    # Taken once for each time that a token is in the output.
    frequency_penalty: Annotated[float, Between(-MAX_PENALTY, MAX_PENALTY)] = 0.0
    # Divides positive logits of tokens in the prompt or the output, and multiplies negative ones.
    repetition_penalty: Annotated[float, AboveZero(MAX_REPETITION_PENALTY)] = 1.0
    dry_multiplier: Annotated[float, Between(0.0, MAX_DRY_MULTIPLIER)] = 0.0  # 0 is off
    dry_base: Annotated[float, Between(1.0, MAX_DRY_BASE)] = 1.75
    dry_allowed_length: Annotated[int, Between(1, MAX_INT32)] = 2  # tokens that may repeat without a penalty
    dry_penalty_last_n: Annotated[int, Between(-1, MAX_INT32)] = -1  # tokens looked back at; -1: all
    dry_breaker_ids: tuple[int, ...] = ()  # tokens that no repeated sequence reaches across
    xtc_probability: Annotated[float, Between(0.0, 1.0)] = 0.0  # of leaving the top choices out; 0 is off
    xtc_threshold: Annotated[float, Between(0.0, 1.0)] = 0.1  # probability from which on a token is a top choice
    min_tokens: Annotated[int, Between(0)] = 0  # no token that ends the request is sampled before
    seed: int | None = None  # None, or -1: the engine picks one
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logit_bias: tuple[tuple[int, float], ...] = ()  # token id, what is added to its logit
    allowed_token_ids: tuple[int, ...] | None = None  # None: all
    bad_words: tuple[tuple[int, ...], ...] = ()  # sequences of token ids that the output shall not have
    # Alternatives besides each token's own log probability; None: not even that one.
    logprobs: Annotated[int, Between(0, MAX_LOGPROBS)] | None = None
    prompt_logprobs: Annotated[int, Between(0, MAX_LOGPROBS)] | None = None  # likewise, of the prompt's tokens
    logprob_token_ids: tuple[int, ...] = ()  # tokens whose logprobs are wanted wherever a token is sampled
    # Whether the logprobs of output tokens are those of the distribution that they were drawn from, after all that
    # changes it; else those of the unmodified logits.
    drawn_logprobs: bool = False

    def __post_init__(self) -> None:
        # Most requests change few parameters, so those that have their defaults are passed over.
        changed = []
        for name, default in _NUMBER_DEFAULTS:
            value = getattr(self, name)
            if value is not default:
                changed.append(name)
                # A wrong type would be found where nothing may fail any more: in the engine's thread.
                if not isinstance(value, _KINDS[name]) or isinstance(value, bool):
                    wanted = "an integer" if NUMBERS[name].is_whole else "a number"
                    raise InvalidParameter(name, f"{name} is {value!r}; it must be {wanted}")
        if changed:
            self._check_limits(changed)
        if self.seed == -1:  # as in other engines
            object.__setattr__(self, "seed", None)
        for name, most in _MOST_ENTRIES:
            count = len(getattr(self, name))
            if count > most:
                raise InvalidParameter(name, f"{name} has {count} entries; at most {most} are allowed")
        if self.logit_bias:
            self._check_biases()
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise InvalidParameter("allowed_token_ids", "allowed_token_ids is empty; it must allow at least one token")
        for word in self.bad_words:
            if not 1 <= len(word) <= MAX_BAD_WORD_TOKENS:
                raise InvalidParameter(
                    "bad_words",
                    f"bad_words has an entry of {len(word)} tokens; each must have from 1 to {MAX_BAD_WORD_TOKENS}",
                )
        if self.logprob_token_ids and self.logprobs is None:
            raise InvalidParameter(
                "logprob_token_ids", "logprob_token_ids is given and logprobs is not; it needs logprobs, 0 at least"
            )

    def _check_limits(self, names: Sequence[str]) -> None:
        for name in names:
            value, limits = getattr(self, name), NUMBERS[name].limits
            if value is not None and limits is not None and not limits.allows(value):
                raise InvalidParameter(name, f"{name} is {value}; it must be {limits}")
        if self.top_k < -1:
            raise InvalidParameter(
                "top_k", f"top_k is {self.top_k}; it must be positive, or 0 or -1 for the whole vocabulary"
            )
        if self.min_tokens > self.max_tokens:
            raise InvalidParameter(
                "min_tokens", f"min_tokens is {self.min_tokens}; it must be at most max_tokens, {self.max_tokens}"
            )
        if self.seed is not None and not -MAX_SEED - 1 <= self.seed <= MAX_SEED:
            raise InvalidParameter("seed", f"seed is {self.seed}; it must fit in 64 bits")

    def _check_biases(self) -> None:
        if len({token_id for token_id, _ in self.logit_bias}) < len(self.logit_bias):
            raise InvalidParameter("logit_bias", "logit_bias names a token twice; each may have one bias")
        for token_id, bias in self.logit_bias:
            if not -MAX_BIAS <= bias <= MAX_BIAS:
                raise InvalidParameter(
                    "logit_bias",
                    f"logit_bias of token {token_id} is {bias}; it must be from {-MAX_BIAS:g} to {MAX_BIAS:g}",
                )

    def with_seed(self, seed: int) -> SamplingParams:
        """The same with another seed of 64 bits; nothing else is checked again, as a request may have many answers."""
        return self._with("seed", seed)

    def with_max_tokens(self, max_tokens: int) -> SamplingParams:
        """The same with another positive `max_tokens`; raises InvalidParameter."""
        if self.min_tokens > max_tokens:
            raise InvalidParameter(
                "min_tokens", f"min_tokens is {self.min_tokens}; it must be at most max_tokens, {max_tokens}"
            )
        return self._with("max_tokens", max_tokens)

    def _with(self, changed: str, value: int) -> SamplingParams:
        copied = object.__new__(SamplingParams)
        for name in _FIELDS:
            object.__setattr__(copied, name, getattr(self, name))
        object.__setattr__(copied, changed, value)
        return copied

    def check_token_ids(self, vocab_size: int) -> None:
        """Raises InvalidParameter where a token id is not of the vocabulary."""
        if self.logit_bias:
            _check_token_ids("logit_bias", [token_id for token_id, _ in self.logit_bias], vocab_size)
        if self.bad_words:
            _check_token_ids("bad_words", [token_id for word in self.bad_words for token_id in word], vocab_size)
        for name, token_ids in (
            ("stop_token_ids", self.stop_token_ids),
            ("allowed_token_ids", self.allowed_token_ids),
            ("logprob_token_ids", self.logprob_token_ids),
            ("dry_sequence_breakers", self.dry_breaker_ids),
        ):
            if token_ids:
                _check_token_ids(name, token_ids, vocab_size)


class Number(NamedTuple):
    """The type and limits of a field of SamplingParams that holds a number."""

    is_whole: bool
    is_optional: bool
    limits: Limits | None


def _numbers() -> Iterator[tuple[str, Number]]:
    for name, hint in get_type_hints(SamplingParams, include_extras=True).items():
        is_optional = get_origin(hint) in (Union, UnionType) and NoneType in get_args(hint)
        kind = next(arg for arg in get_args(hint) if arg is not NoneType) if is_optional else hint
        limits = None
        if get_origin(kind) is Annotated:
            kind, limits = get_args(kind)
        if kind in (int, float):
            yield name, Number(kind is int, is_optional, limits)


_FIELDS = tuple(field.name for field in fields(SamplingParams))
NUMBERS: Mapping[str, Number] = dict(_numbers())  # in the order of the fields
_KINDS = {
    name: (int, *(() if number.is_whole else (float,)), *((NoneType,) if number.is_optional else ()))
    for name, number in NUMBERS.items()
}
_NUMBER_DEFAULTS = [(field.name, field.default) for field in fields(SamplingParams) if field.name in NUMBERS]
_MOST_ENTRIES = (
    ("stop_token_ids", MAX_STOP_TOKEN_IDS),
    ("logprob_token_ids", MAX_LOGPROB_TOKEN_IDS),
    ("logit_bias", MAX_LOGIT_BIAS),
    ("bad_words", MAX_BAD_WORDS),
)


def _check_token_ids(name: str, token_ids: Sequence[int], vocab_size: int) -> None:
    if any(kind is not int for kind in set(map(type, token_ids))):
        raise InvalidParameter(name, f"{name} has something else than integers; token ids must be integers")
    lowest, highest = min(token_ids), max(token_ids)
    if lowest < 0 or highest >= vocab_size:
        wrong = lowest if lowest < 0 else highest
        raise InvalidParameter(name, f"{name} has {wrong}; token ids must be from 0 to {vocab_size - 1}")
