"""The model's vocabulary as llguidance wants it: a tree of its tokens' bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from sampling.host.packed import num_words_of
from server.grammar.limits import InvalidGrammar

if TYPE_CHECKING:
    from llguidance import LLTokenizer


class HasVocabulary(Protocol):
    """The part of a Tokenizer that is needed."""

    @property
    def token_bytes(self) -> Sequence[bytes]: ...
    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...


class GrammarVocabulary:
    """Which token stands for which bytes, and which ones end an output.

    Made once for a model: 49,152 tokens take 0.13 s, for which all threads of the process stand
    still, and 17 MB. Tokens that stand for no text occur in no grammar.

    Raises:
        InvalidGrammar: the model has no end token, which a grammar's end would wait for.
    """

    def __init__(self, tokenizer: HasVocabulary, vocab_size: int) -> None:
        """
        Args:
            vocab_size: of the model's logits; tokens that the tokenizer does not know stand for no text.
        """
        from llguidance import LLTokenizer, TokenizerWrapper

        self.vocab_size = vocab_size
        self.end_token_ids = frozenset(tokenizer.eos_token_ids)
        if not self.end_token_ids:
            raise InvalidGrammar("the model has no token that ends an answer")
        tokens = TokenizerWrapper(_Tokens(tokenizer, vocab_size))
        self.tokens: LLTokenizer = LLTokenizer(tokens, n_vocab=vocab_size, eos_token=list(tokenizer.eos_token_ids))

    @property
    def num_words(self) -> int:
        """Words of a row of packed bits."""
        return num_words_of(self.vocab_size)


class _Tokens:
    """What llguidance asks of a tokenizer."""

    bos_token_id = None

    def __init__(self, tokenizer: HasVocabulary, vocab_size: int) -> None:
        known = tokenizer.token_bytes[:vocab_size]
        texts = [*known, *[b""] * (vocab_size - len(known))]
        self.eos_token_id = tokenizer.eos_token_ids[0]
        self.special_token_ids = [token_id for token_id, text in enumerate(texts) if not text]
        # 0xFF is in no text and marks what is no text; the number keeps such tokens apart.
        self.tokens = [text or b"\xff[%d]" % token_id for token_id, text in enumerate(texts)]

    def __call__(self, text: str) -> list[int]:
        """Called once, with a test, on construction: grammars are compiled so that no text is ever forced."""
        return []
