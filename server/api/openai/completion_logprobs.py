"""Log probabilities in the shape of completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.interface.types import TokenLogprobs
from server.api.openai.logprobs import WireLogprobs, clamp
from server.text.detokenizer import HasTokenBytes, IncrementalDetokenizer


@dataclass(slots=True)
class CompletionLogprobs(WireLogprobs):
    """OpenAI's shape for completions: parallel lists."""

    _places: dict[int, _TextPlace] = field(init=False, default_factory=dict)  # by choice

    def _shape(self, index: int, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None]) -> dict[str, Any]:
        place = self._places.get(index)
        if place is None:
            place = self._places[index] = self._first_place(index)
        has_alternatives = self.listed_ids or any(of_token.top for of_token in logprobs if of_token is not None)
        shape: dict[str, Any] = {
            "tokens": [self._name(token_id) for token_id in token_ids],
            "token_logprobs": [None if of_token is None else clamp(of_token.logprob) for of_token in logprobs],
            "top_logprobs": list(map(self._by_text, token_ids, logprobs)) if has_alternatives else None,
            "text_offset": [place.advance(token_id) for token_id in token_ids],
        }
        if self.with_ids:
            shape["token_ranks"] = [None if of_token is None else of_token.rank for of_token in logprobs]
            shape["alternatives"] = list(map(self._by_id, logprobs))
            masked = [0.0 if of_token is None else of_token.masked for of_token in logprobs]
            if any(masked):
                shape["masked_probabilities"] = masked
        if self.listed_ids:
            shape["listed_logprobs"] = [
                self._listed(of_token) if of_token is not None and of_token.listed else None for of_token in logprobs
            ]
        return shape

    def _first_place(self, index: int) -> _TextPlace:
        """Where an answer begins. A tokenizer may put a space before a prompt, which is no part of the text."""
        if self.num_of_echo is None:
            return _TextPlace(self.tokenizer)
        of_prompt = index // self.num_choices
        decoded = IncrementalDetokenizer(self.tokenizer).decode(self.prompts[of_prompt])
        return _TextPlace(self.tokenizer, len(self.echoes[of_prompt]) - len(decoded))

    def _by_id(self, logprobs: TokenLogprobs | None) -> list[dict[str, Any]] | None:
        """The alternatives alone, each with its id."""
        if logprobs is None:
            return None
        return [
            {"id": token_id, "token": self._name(token_id), "logprob": clamp(logprob)}
            for token_id, logprob in self._alternatives(logprobs)
        ]

    def _by_text(self, token_id: int, logprobs: TokenLogprobs | None) -> dict[str, float] | None:
        """The alternatives and the token itself; of several of the same text the best."""
        if logprobs is None:
            return None
        shape: dict[str, float] = {}
        for any_id, logprob in self._alternatives(logprobs, (token_id, logprobs.logprob)):
            shape.setdefault(self._name(any_id), clamp(logprob))
        return shape


class _TextPlace:
    """Where one choice's text is, token by token."""

    __slots__ = ("_detokenizer", "_num_characters")

    def __init__(self, tokenizer: HasTokenBytes, first: int = 0) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._num_characters = first

    def advance(self, token_id: int) -> int:
        """Characters before the token's first; those of a character that takes several tokens begin at the same."""
        before = self._num_characters
        self._num_characters += len(self._detokenizer.decode([token_id]))
        return max(before, 0)
