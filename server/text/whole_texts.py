"""Token ids of texts that a model reads as a whole: with what it needs around them, and cut where that is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from server.text.tokenizer import Tokenizer

_CHARS_OF_A_TOKEN = 8  # the first guess of how much of a text is needed for so many tokens
# A beginning of a text may end within a word. So many of its last tokens may differ from those of the whole text.
_UNSURE_TOKENS = 128
_MORE = 4  # how much more of a text is taken where a beginning had too few tokens


class WholeText(NamedTuple):
    """A text, or a pair of them, as token ids."""

    token_ids: list[int]
    second_start: int = 0  # where the second text of a pair begins; 0: it is no pair
    first_pooled: int = 0  # the first token that its embedding is made of


class NoPairs(ValueError):
    """The tokenizer does not say what stands between the texts of a pair."""


def encode_text(tokenizer: Tokenizer, text: str, most: int, *, is_cut: bool) -> WholeText:
    """A text with what the model needs around it; with `is_cut`, the first tokens that fit into `most`.

    Raises TooManyTokens: the text has far more than `most`. Its exact number is not checked.
    """
    before, behind = tokenizer.prefix_ids, tokenizer.suffix_ids
    if not is_cut:
        return WholeText([*before, *_encode_all(tokenizer, text, most), *behind])
    room = max(0, most - len(before) - len(behind))
    return WholeText([*before, *encode_beginning(tokenizer, text, room), *behind][:most])


def tokens_before(tokenizer: Tokenizer, lead: str) -> int:
    """How many tokens of a text that `encode_text` makes are those of `lead`, and of what comes before it."""
    return len(tokenizer.prefix_ids) + len(tokenizer.encode(lead, add_special_tokens=False)) if lead else 0


def encode_part(tokenizer: Tokenizer, text: str, most: int, *, is_cut: bool) -> Sequence[int]:
    """One text of a pair, for `join_pair`; raises TooManyTokens as `encode_text`."""
    return encode_beginning(tokenizer, text, most) if is_cut else _encode_all(tokenizer, text, most)


def join_pair(
    tokenizer: Tokenizer, first: Sequence[int], second: Sequence[int], most: int, *, is_cut: bool,
    is_of_encoder: bool = True,
) -> WholeText:  # fmt: skip
    """A pair of texts; with `is_cut`, the longer one is cut first, as transformers does ("longest_first").

    Those of decoders stand side by side where their tokenizers say nothing of pairs.

    Raises NoPairs.
    """
    before, between, behind = tokenizer.prefix_ids, tokenizer.between_ids, tokenizer.suffix_ids
    if between is None:
        if is_of_encoder:
            raise NoPairs("the model's tokenizer takes no pairs of texts")
        between = ()
    if is_cut:
        room = max(0, most - len(before) - len(between) - len(behind))
        num_first, num_second = longest_first(len(first), len(second), room)
        first, second = first[:num_first], second[:num_second]
    start = [*before, *first, *between]
    return WholeText([*start, *second, *behind], len(start))


def encode_beginning(tokenizer: Tokenizer, text: str, most: int) -> list[int]:
    """The first tokens of a text, `most` at most; the work does not grow with what follows them."""
    num_chars = _CHARS_OF_A_TOKEN * (most + _UNSURE_TOKENS)
    while True:
        token_ids = tokenizer.encode(text[:num_chars], add_special_tokens=False)
        if num_chars >= len(text) or len(token_ids) >= most + _UNSURE_TOKENS:
            return token_ids[:most]
        num_chars *= _MORE


def _encode_all(tokenizer: Tokenizer, text: str, most: int) -> Sequence[int]:
    tokenizer.refuse_far_too_long(text, most)
    return tokenizer.encode(text, add_special_tokens=False, max_tokens=2 * most)


def longest_first(a: int, b: int, room: int) -> tuple[int, int]:
    """How many tokens of two texts are kept in `room`: the longer one is cut, and where both are too long, both."""
    shorter, longer = min(a, b), max(a, b)
    longer = shorter if shorter > room else max(shorter, room - shorter)
    if shorter + longer > room:
        shorter = room // 2
        longer = shorter + room % 2
    return (min(a, shorter), min(b, longer)) if a <= b else (min(a, longer), min(b, shorter))
