"""Outputs of a model that knows nothing but its grammar."""

from __future__ import annotations

import numpy as np

from sampling.host.grammar import TokenMatcher, num_words_of
from server.structured_output.grammar_vocabulary import HasVocabulary

_MERGES = (
    ' "', '":', '": ', '", "', "},", "}]", '"}', "[{", "\n  ", "    ", "true", "null", "number", " be", "ab", "abc",
    "12", "00", "199", "é", "日", "😀", " leading", "-0", "e+", "\\n", "\\u0", "<|", "yes", "((", "))", '""',
)  # fmt: skip
_CLOSING = frozenset('"}])')


class MergedBytes:
    """Every byte, four control tokens, and some pieces of JSON and text; no multiple of 32."""

    eos_token_ids = (257, 259)
    token_bytes = tuple([bytes([value]) for value in range(256)] + [b""] * 4 + [text.encode() for text in _MERGES])
    vocab_size = len(token_bytes)


def allowed_tokens(matcher: TokenMatcher, vocab_size: int) -> np.ndarray:
    """Token ids, ascending; fails where a bit beyond the vocabulary is set."""
    words = np.full(num_words_of(vocab_size), 0xFFFFFFFF, np.uint32)
    matcher.fill_mask(words)
    token_ids = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
    assert not token_ids.size or token_ids[-1] < vocab_size
    return token_ids


def random_text(matcher: TokenMatcher, tokenizer: HasVocabulary, vocab_size: int, seed: int, most: int = 600) -> str:
    """Draws tokens at temperature 1 until the grammar ends; the larger the seed, the more is ending preferred.

    Fails where there is no end after `most` tokens.
    """
    rng = np.random.default_rng(seed)
    preference = np.zeros(vocab_size, np.float32)
    preference[list(tokenizer.eos_token_ids)] = seed
    for token_id, text in enumerate(tokenizer.token_bytes):
        if text and chr(text[-1]) in _CLOSING:
            preference[token_id] = 1 + seed / 2
    output = b""
    for _ in range(most):
        allowed = allowed_tokens(matcher, vocab_size)
        assert allowed.size, output
        token_id = int(allowed[np.argmax(rng.gumbel(size=allowed.size) + preference[allowed])])
        matcher.accept(token_id)
        if token_id in tokenizer.eos_token_ids:
            return output.decode("utf-8")
        assert tokenizer.token_bytes[token_id], f"the control token {token_id} after {output!r}"
        output += tokenizer.token_bytes[token_id]
    raise AssertionError(f"no end after {most} tokens: {output[-200:]!r}")
