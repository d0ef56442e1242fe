"""POST /v1/completions: from the request body to the prompts, and from deltas to chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from server.api.openai.call import OpenAICall
from server.api.openai.chunk_writer import NULLS, ChunkWriter
from server.api.openai.completion_request import CompletionRequest, Prompt
from server.api.openai.logprobs import CompletionLogprobs
from server.api.openai.openai_objects import encode_reason, error_object
from server.api.route import BodyRoute
from server.generation.answers import Answer
from server.generation.output_sequence import Delta
from server.generation.prompt_sources import InfillPrompt, PromptSource, TextPrompt, TokenPrompt

DEFAULT_MAX_TOKENS = 16  # OpenAI's
_OBJECT = "text_completion"


class CompletionWriter(ChunkWriter):
    """Writes a text completion, whole or as chunks."""

    chunk_object = _OBJECT

    def to_dict(self, answers: Sequence[Answer]) -> dict[str, Any]:
        choices = [self._shape(answer) for answer in answers]
        return {
            **self._answer_head.to_dict(_OBJECT),
            "choices": choices,
            "usage": self._usage(),
            **NULLS,
            **self._metrics(),
            **self._timings(),
            **self._verbose(answers),
        }

    def _encode(self, delta: Delta) -> bytes:
        return b'%b,"choices":[{"index":%d,"text":%b,"logprobs":%b,"finish_reason":%b%b%b%b}]%b' % (
            self._head,
            delta.index,
            orjson.dumps(delta.text),
            b"null" if self._logprobs is None else self._logprobs.encode(delta),
            encode_reason(delta.finish_reason),
            self._encoded_stops(delta),
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
            **self._stops(answer),
            "prompt_logprobs": None,
            "token_ids": None,
            "prompt_token_ids": None,
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
    """A completion request with one or several prompts."""

    writer_kind = CompletionWriter
    logprobs_kind = CompletionLogprobs
    id_prefix = "cmpl"

    def __init__(self, body: CompletionRequest, *, default_max_tokens: int | None = DEFAULT_MAX_TOKENS) -> None:
        prompts = [_source(prompt, body) for prompt in body.prompt]
        if body.is_unlimited:
            default_max_tokens = None
        super().__init__(body, prompts, default_max_tokens=default_max_tokens, echoes=body.echo is True)

    @classmethod
    def parse(cls, body: Any) -> CompletionCall:
        return cls(CompletionRequest.parse(body))


def _source(prompt: Prompt, body: CompletionRequest) -> PromptSource:
    if body.suffix:
        return InfillPrompt(prompt, body.suffix)
    if isinstance(prompt, str):
        return TextPrompt(prompt, adds_special=body.add_special_tokens is not False)
    return TokenPrompt(prompt)


COMPLETIONS = BodyRoute("/v1/completions", CompletionCall.parse, error_object)
