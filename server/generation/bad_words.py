"""The parameter bad_words: from a request's words to the token sequences that the sampler bans."""

from collections.abc import Sequence
from typing import Protocol

from sampling.host.params import MAX_BAD_WORD_TOKENS, MAX_BAD_WORDS, InvalidParameter
from server.protocol.errors import shorten

# Some tokenizers give a word other tokens at the beginning of a text than in its middle. The tokens in
# the middle are found by putting the word behind one of these anchors. The first nearly always serves;
# an anchor that shares a token with the word does not.
_ANCHORS = ("\n", "a", "1", ".")


class HasEncode(Protocol):
    """What is needed of a `Tokenizer`."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...


def bad_word_ids(words: Sequence[str], tokenizer: HasEncode) -> tuple[tuple[int, ...], ...]:
    """The token sequences of every word within a text, with and without a space before it, without repetitions.

    Raises InvalidParameter: a word makes no token or too many, or there are too many sequences.
    """
    sequences: dict[tuple[int, ...], None] = {}
    for word in words:
        spellings = [tuple(_encode_within(form, tokenizer)) for form in _forms(word)]
        longest = max(map(len, spellings))
        if not 1 <= longest <= MAX_BAD_WORD_TOKENS:
            raise InvalidParameter(
                "bad_words",
                f"bad_words has {shorten(word)}, which makes {longest} tokens; "
                f"each must make from 1 to {MAX_BAD_WORD_TOKENS}",
            )
        sequences.update(dict.fromkeys(filter(None, spellings)))
    if len(sequences) > MAX_BAD_WORDS:
        raise InvalidParameter(
            "bad_words",
            f"bad_words has {len(words)} entries, which make {len(sequences)} sequences of tokens, "
            f"with and without a space before; at most {MAX_BAD_WORDS} are allowed",
        )
    return tuple(sequences)


def _forms(word: str) -> tuple[str, ...]:
    bare = word.lstrip(" ")
    return (bare, " " + bare) if bare else (word,)


def _encode_within(text: str, tokenizer: HasEncode) -> list[int]:
    for anchor in _ANCHORS:
        before = tokenizer.encode(anchor, add_special_tokens=False)
        both = tokenizer.encode(anchor + text, add_special_tokens=False)
        if both[: len(before)] == before:
            return both[len(before) :]
    return tokenizer.encode(text, add_special_tokens=False)
