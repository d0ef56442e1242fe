"""Log probabilities in OpenAI's JSON, for chat completions and for completions.

A token's text is what it stands for, with U+FFFD where its bytes alone are no UTF-8. A control
token, which stands for no text, has its name in the vocabulary instead, and its `bytes` are null.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import orjson

from engine.interface.types import TokenLogprobs
from server.generation.answers import Answer
from server.generation.output_sequence import Delta
from server.text.detokenizer import HasTokenBytes, HasTokenTexts, IncrementalDetokenizer, token_text_alone

PROMPT_SLICE = 256  # tokens of a prompt whose logprobs are encoded at once; a parser of JSON may not be interrupted
LOWEST = -9999.0  # what OpenAI and vLLM write for anything lower


@dataclass(slots=True)
class WireLogprobs(ABC):
    """Writes the logprobs of one request's answers, whole or as deltas in order, in the shape of its route."""

    tokenizer: HasTokenTexts
    prompts: Sequence[Sequence[int]]  # the token ids of each
    num_choices: int  # answers to each prompt
    listed_ids: Sequence[int]  # the `logprob_token_ids` of the request
    of_answers: bool  # whether logprobs of generated tokens are wanted, and not only those of the prompts
    num_of_prompt: int | None = None  # alternatives of the prompts' tokens in a field of their own; None: no such field
    # Alternatives of the prompts' tokens, where the logprobs of an answer begin with those of its prompt.
    num_of_echo: int | None = None
    echoes: Sequence[str] = ()  # the texts of the prompts then
    with_ids: bool = False  # whether ranks and the ids of alternatives are included
    names_ids: bool = False  # whether a token of an answer is called `token_id:5`, as by vLLM, and not by its text
    _texts: dict[int, str] = field(init=False, default_factory=dict)  # the same tokens come again and again

    def shape(self, piece: Delta | Answer) -> dict[str, Any] | None:
        """The `logprobs` of the tokens of `piece`; None where there are none."""
        if not self.of_answers:
            return None
        token_ids, logprobs = piece.token_ids, piece.logprobs or []
        if self.num_of_echo is not None and piece.prompt_logprobs is not None:
            echoed = [
                None if of_token is None else of_token._replace(top=of_token.top[: self.num_of_echo])
                for of_token in piece.prompt_logprobs
            ]
            return self._shape(piece.index, [*self._prompt_of(piece), *token_ids], [*echoed, *logprobs])
        return self._shape(piece.index, token_ids, logprobs) if logprobs else None

    def shape_prompt(self, piece: Delta | Answer) -> orjson.Fragment | None:
        """The `prompt_logprobs` of `piece`, in vLLM's shape, as JSON; None where it has none.

        They are made and encoded slice by slice: at 20 alternatives, all of a long prompt are gigabytes of objects,
        and to encode them at once would keep the interpreter lock.
        """
        if piece.prompt_logprobs is None or self.num_of_prompt is None:
            return None
        tokens = zip(self._prompt_of(piece), piece.prompt_logprobs, strict=True)
        slices = []
        while some := [
            None if logprobs is None else self._of_prompt_token(token_id, logprobs)
            for token_id, logprobs in islice(tokens, PROMPT_SLICE)
        ]:
            slices.append(orjson.dumps(some)[1:-1])
        return orjson.Fragment(b"[" + b",".join(slices) + b"]")

    def encode(self, delta: Delta) -> bytes:
        return orjson.dumps(self.shape(delta))

    def encode_prompt(self, delta: Delta) -> bytes:
        """`shape_prompt` as a field that follows others; empty where the delta has none."""
        shape = self.shape_prompt(delta)
        return b"" if shape is None else b',"prompt_logprobs":' + orjson.dumps(shape)

    @abstractmethod
    def _shape(self, index: int, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None]) -> dict[str, Any]:
        """Makes the object. A prompt's first token, which follows nothing, has None as logprobs."""

    def _prompt_of(self, piece: Delta | Answer) -> Sequence[int]:
        return self.prompts[piece.index // self.num_choices]

    def _name(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self.names_ids else self._text(token_id)

    def _text(self, token_id: int) -> str:
        text = self._texts.get(token_id)
        if text is None:
            text = self._texts[token_id] = token_text_alone(self.tokenizer, token_id)
        return text

    def _listed(self, logprobs: TokenLogprobs) -> dict[str, float]:
        return {
            str(token_id): clamp(logprob) for token_id, logprob in zip(self.listed_ids, logprobs.listed, strict=True)
        }

    def _alternatives(self, logprobs: TokenLogprobs) -> list[tuple[int, float]]:
        """The best tokens and the listed ones, each once, best first."""
        if not logprobs.listed:
            return logprobs.top
        by_id = dict([*logprobs.top, *zip(self.listed_ids, logprobs.listed, strict=True)])
        return sorted(by_id.items(), key=lambda alternative: -alternative[1])

    def _of_prompt_token(self, token_id: int, logprobs: TokenLogprobs) -> dict[str, Any]:
        top = logprobs.top[: self.num_of_prompt]
        best = [(best_id, logprob, rank) for rank, (best_id, logprob) in enumerate(top, start=1)]
        shapes: dict[str, Any] = {}
        for ranked_id, logprob, rank in [(token_id, logprobs.logprob, logprobs.rank), *best]:
            shape = {"logprob": clamp(logprob), "rank": rank, "decoded_token": self._text(ranked_id)}
            shapes.setdefault(str(ranked_id), shape)
        return shapes


def clamp(logprob: float) -> float:
    """`logprob`, no lower than LOWEST: JSON has no infinity."""
    return max(logprob, LOWEST)


@dataclass(slots=True)
class ChatLogprobs(WireLogprobs):
    """OpenAI's shape for chat: an object for each token."""

    def _shape(self, index: int, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None]) -> dict[str, Any]:
        content = [
            self._of_token(token_id, of_token)
            for token_id, of_token in zip(token_ids, logprobs, strict=True)
            if of_token is not None
        ]
        return {"content": content, "refusal": None}

    def _of_token(self, token_id: int, logprobs: TokenLogprobs) -> dict[str, Any]:
        shape = self._entry(token_id, logprobs.logprob)
        if self.with_ids:
            shape["rank"] = logprobs.rank
            if logprobs.masked:
                shape["masked_probability"] = logprobs.masked
        shape["top_logprobs"] = [self._entry(*alternative) for alternative in self._alternatives(logprobs)]
        if self.listed_ids:
            shape["listed_logprobs"] = self._listed(logprobs)
        return shape

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        data = self.tokenizer.token_bytes[token_id]
        shape = {"token": self._name(token_id), "logprob": clamp(logprob), "bytes": list(data) if data else None}
        if self.with_ids:
            shape["id"] = token_id
        return shape


@dataclass(slots=True)
class CompletionLogprobs(WireLogprobs):
    """OpenAI's shape for completions: parallel lists."""

    _places: dict[int, _TextPlace] = field(init=False, default_factory=dict)  # by choice

    def _shape(self, index: int, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None]) -> dict[str, Any]:
        place = self._places.get(index)
        if place is None:
            place = self._places[index] = self._first_place(index)
        shape: dict[str, Any] = {
            "tokens": [self._name(token_id) for token_id in token_ids],
            "token_logprobs": [None if of_token is None else clamp(of_token.logprob) for of_token in logprobs],
            "top_logprobs": list(map(self._by_text, token_ids, logprobs)),
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
        """The text offset of an answer. A tokenizer may put a space before a prompt, which is no part of the text."""
        if self.num_of_echo is None:
            return _TextPlace(self.tokenizer)
        of_prompt = index // self.num_choices
        decoded = IncrementalDetokenizer(self.tokenizer).decode(self.prompts[of_prompt])
        return _TextPlace(self.tokenizer, len(self.echoes[of_prompt]) - len(decoded))

    def _by_id(self, logprobs: TokenLogprobs | None) -> list[dict[str, Any]] | None:
        if logprobs is None:
            return None
        return [
            {"id": token_id, "token": self._name(token_id), "logprob": clamp(logprob)}
            for token_id, logprob in self._alternatives(logprobs)
        ]

    def _by_text(self, token_id: int, logprobs: TokenLogprobs | None) -> dict[str, float] | None:
        """The token itself and the alternatives; of several of the same text the first."""
        if logprobs is None:
            return None
        shape = {self._name(token_id): clamp(logprobs.logprob)}
        for any_id, logprob in self._alternatives(logprobs):
            shape.setdefault(self._name(any_id), clamp(logprob))
        return shape


class _TextPlace:
    __slots__ = ("_detokenizer", "_num_characters")

    def __init__(self, tokenizer: HasTokenBytes, first: int = 0) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._num_characters = first

    def advance(self, token_id: int) -> int:
        """Characters before the token's first; the tokens of one character have the same offset."""
        before = self._num_characters
        self._num_characters += len(self._detokenizer.decode([token_id]))
        return max(before, 0)
