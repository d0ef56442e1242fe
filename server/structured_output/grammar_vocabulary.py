"""The vocabulary of the model in the form that llguidance needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from sampling.host.grammar import num_words_of
from server.structured_output.grammar_limits import InvalidGrammar
from server.structured_output.schemas.digit_limit import DigitLimit

if TYPE_CHECKING:
    from llguidance import LLTokenizer


class HasVocabulary(Protocol):
    @property
    def token_bytes(self) -> Sequence[bytes]: ...
    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...


class GrammarVocabulary:
    """The bytes of each token, and the tokens that end an output, built once for a model while all threads wait.

    Tokens without text match no grammar. Raises InvalidGrammar if the model has no end token.
    """

    def __init__(self, tokenizer: HasVocabulary, vocab_size: int) -> None:
        from llguidance import LLTokenizer, TokenizerWrapper

        self.vocab_size = vocab_size
        self.end_token_ids = frozenset(tokenizer.eos_token_ids)
        if not self.end_token_ids:
            raise InvalidGrammar("the model has no token that ends an answer")
        self.digits = DigitLimit(tokenizer.token_bytes, self.end_token_ids, vocab_size)
        tokens = TokenizerWrapper(_Tokens(tokenizer, vocab_size))
        self.tokens: LLTokenizer = LLTokenizer(tokens, n_vocab=vocab_size, eos_token=list(tokenizer.eos_token_ids))

    @property
    def num_words(self) -> int:
        """32-bit words of a mask row, with one bit for each token."""
        return num_words_of(self.vocab_size)


class _Tokens:
    bos_token_id = None

    def __init__(self, tokenizer: HasVocabulary, vocab_size: int) -> None:
        known = tokenizer.token_bytes[:vocab_size]
        texts = [*known, *[b""] * (vocab_size - len(known))]
        self.eos_token_id = tokenizer.eos_token_ids[0]
        self.special_token_ids = [token_id for token_id, text in enumerate(texts) if not text]
        # The byte 0xFF is in no text, so it marks a token without text; the number makes such tokens distinct.
        self.tokens = [text or b"\xff[%d]" % token_id for token_id, text in enumerate(texts)]

    def __call__(self, text: str) -> list[int]:
        """Called only once, with a test text: grammars are compiled so that llguidance tokenizes nothing."""
        return []
