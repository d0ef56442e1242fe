"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from server.api.framing import Framing
from server.api.openai.chunks import Chunks
from server.api.openai.completion_logprobs import CompletionLogprobs
from server.api.openai.completion_request import CompletionRequest, Prompt
from server.api.openai.logprobs import WireLogprobs
from server.api.openai.openai_call import OpenAICall
from server.api.openai.openai_shapes import AnswerHead, encode_reason, shape_error
from server.api.route import BodyRoute
from server.generation.answers import Answer
from server.generation.generation import Generation
from server.generation.output_sequence import Delta
from server.generation.prompt_sources import InfillPrompt, PromptSource, TextPrompt, TokenPrompt
from server.protocol.generation_fields import GenerationFields

DEFAULT_MAX_TOKENS = 16  # OpenAI's
_OBJECT = "text_completion"


class CompletionChunks(Chunks):
    """Writes the answer to a completion."""

    chunk_object = _OBJECT

    def __init__(
        self, head: AnswerHead, fields: GenerationFields, generation: Generation, logprobs: WireLogprobs | None,
        framing: Framing,
    ) -> None:  # fmt: skip
        super().__init__(head, fields, generation, logprobs, framing)
        self._choice = self._head + b',"choices":[{"index":'
        # The choices that have yet to tell their prompt's ids.
        self._silent = set(range(generation.num_choices)) if self._with_token_ids else set()

    def to_dict(self, answers: Sequence[Answer]) -> dict[str, Any]:
        choices = [self._shape(answer) for answer in answers]
        return {
            **self._answer_head.to_dict(_OBJECT),
            "choices": choices,
            "usage": self._usage(),
            **self._metrics(),
        }

    def _encode(self, delta: Delta) -> bytes:
        return b'%b%d,"text":%b,"logprobs":%b,"finish_reason":%b%b%b}]%b' % (
            self._choice,
            delta.index,
            orjson.dumps(delta.text),
            b"null" if self._logprobs is None else self._logprobs.encode(delta),
            encode_reason(delta.finish_reason),
            b"" if self._logprobs is None else self._logprobs.encode_prompt(delta),
            self._token_ids(delta) if self._with_token_ids else b"",
            self._tail,
        )

    def _token_ids(self, delta: Delta) -> bytes:
        encoded = b',"token_ids":' + orjson.dumps(delta.token_ids)
        if delta.index in self._silent:
            self._silent.remove(delta.index)
            encoded += b',"prompt_token_ids":' + orjson.dumps(self._prompt_of(delta))
        return encoded

    def _shape(self, answer: Answer) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": answer.index,
            "text": answer.text,
            "logprobs": None if self._logprobs is None else self._logprobs.shape(answer),
            "finish_reason": answer.finish_reason,
        }
        if self._logprobs is not None and self._fields.prompt_logprobs is not None:
            choice["prompt_logprobs"] = self._logprobs.shape_prompt(answer)
        if self._with_token_ids:
            choice["token_ids"] = answer.token_ids
            choice["prompt_token_ids"] = self._prompt_of(answer)
        return choice

    def _prompt_of(self, piece: Delta | Answer) -> list[int]:
        return self._generation.prompts[piece.index // self._fields.num_choices].token_ids


class CompletionCall(OpenAICall):
    """One or several prompts, each of which the model continues."""

    writer_kind = CompletionChunks
    logprobs_kind = CompletionLogprobs
    id_prefix = "cmpl"

    def __init__(self, body: CompletionRequest) -> None:
        prompts = [_source(prompt, body) for prompt in body.prompt]
        super().__init__(body, prompts, default_max_tokens=DEFAULT_MAX_TOKENS, echoes=body.echo is True)

    @classmethod
    def parse(cls, body: Any) -> CompletionCall:
        """
        Raises:
            ApiError, ValidationError: the decoded JSON body is not a valid request.
        """
        return cls(CompletionRequest.parse(body))


def _source(prompt: Prompt, body: CompletionRequest) -> PromptSource:
    if body.suffix:
        return InfillPrompt(prompt, body.suffix)
    if isinstance(prompt, str):
        return TextPrompt(prompt, adds_special=body.add_special_tokens is not False)
    return TokenPrompt(prompt)


COMPLETIONS = BodyRoute("/v1/completions", CompletionCall.parse, shape_error)
