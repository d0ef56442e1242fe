"""Log probabilities as the routes write them: the engine's token ids become texts and JSON.

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
from server.text.detokenizer import HasTokenTexts, token_text_alone

PROMPT_SLICE = 256  # tokens of a prompt whose logprobs are encoded at once; a parser of JSON may not be interrupted
LOWEST = -9999.0  # what OpenAI and vLLM write for anything lower


@dataclass(slots=True)
class WireLogprobs(ABC):
    """Writes the logprobs of one request's answers in the shape of its route.

    It is given every answer once, whole or as all its deltas in their order.
    """

    tokenizer: HasTokenTexts
    prompts: Sequence[Sequence[int]]  # the token ids of each
    num_choices: int  # answers to each prompt
    listed_ids: Sequence[int]  # the `logprob_token_ids` of the request
    of_answers: bool  # whether logprobs of generated tokens are wanted, and not only those of the prompts
    num_of_prompt: int | None = None  # alternatives of the prompts' tokens in a field of their own; None: no such field
    # Alternatives of the prompts' tokens, where the logprobs of an answer begin with those of its prompt.
    num_of_echo: int | None = None
    echoes: Sequence[str] = ()  # the texts of the prompts then
    with_ids: bool = False  # whether ranks and the ids of alternatives are told too
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
        """The `prompt_logprobs` that `piece` brings, in vLLM's shape, as JSON; None where it brings none.

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
        """`shape` as JSON."""
        return orjson.dumps(self.shape(delta))

    def encode_prompt(self, delta: Delta) -> bytes:
        """`shape_prompt` as a field that follows others; nothing where the delta does not bring it."""
        shape = self.shape_prompt(delta)
        return b"" if shape is None else b',"prompt_logprobs":' + orjson.dumps(shape)

    @abstractmethod
    def _shape(self, index: int, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None]) -> dict[str, Any]:
        """None stands for the logprobs of a prompt's first token, which follows nothing."""

    def _prompt_of(self, piece: Delta | Answer) -> Sequence[int]:
        return self.prompts[piece.index // self.num_choices]

    def _name(self, token_id: int) -> str:
        """What a token of an answer is called."""
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

    def _alternatives(self, logprobs: TokenLogprobs, *others: tuple[int, float]) -> list[tuple[int, float]]:
        """The best tokens, the listed ones and `others`, each once, best first."""
        if not (others or logprobs.listed):
            return logprobs.top
        listed = zip(self.listed_ids, logprobs.listed, strict=bool(logprobs.listed))  # none of a prompt's token
        by_id = dict([*logprobs.top, *listed, *others])
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
