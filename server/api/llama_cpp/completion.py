"""POST /completion and /infill: from llama.cpp's bodies to generation requests, and to its answers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson

from engine.interface.types import FinishReason, PromptProgress
from server.api.framing import SERVER_SENT_EVENTS, Framing
from server.api.llama_cpp.completion_request import InfillRequest, LlamaCompletionRequest
from server.api.openai.call import to_request
from server.api.openai.logprobs import ChatLogprobs
from server.api.openai.openai_objects import progress_object
from server.api.route import AnswerContext, AnswerWriter, BodyCall, BodyRoute
from server.generation.answers import Answer, Timings
from server.generation.generation import Generation
from server.generation.output_sequence import Delta
from server.generation.prompt_sources import InfillPrompt, PromptSource, TextPrompt, TokenPrompt
from server.protocol.errors import ApiError, ContextLengthExceeded

FRAMING = replace(SERVER_SENT_EVENTS, done=b"")  # its streams end with the chunk that has `stop`


def error_object(error: ApiError, _request_id: str | None = None) -> dict[str, Any]:
    """The body of an error, as llama.cpp writes it."""
    body = {"code": error.status, "message": error.message, "type": error.type, "param": error.param}
    if isinstance(error, ContextLengthExceeded):
        body |= {"type": "exceed_context_size_error", "n_prompt_tokens": error.num_tokens, "n_ctx": error.limit}
    return {"error": body}


class LlamaCompletionWriter(AnswerWriter):
    """Writes the answers of a generation, whole or as chunks."""

    def __init__(
        self,
        call: LlamaCompletionCall,
        generation: Generation,
        context: AnswerContext,
        logprobs: ChatLogprobs | None,
    ) -> None:
        self.is_slow = logprobs is not None
        self._call = call
        self._generation = generation
        self._context = context
        self._logprobs = logprobs
        self._began = time.perf_counter()
        self._num_predicted = [0] * generation.num_choices

    def encode(self, deltas: Sequence[Delta]) -> list[bytes]:
        return [self._context.framing.frame(orjson.dumps(self._chunk(delta))) for delta in deltas]

    def end(self) -> list[bytes]:
        return [
            self._context.framing.frame(orjson.dumps(self._last(index, "", reason)))
            for index, reason in enumerate(self._generation.finish_reasons)
        ]

    def to_dict(self, answers: Sequence[Answer]) -> Any:
        """One object, or a list of them where the request has several prompts."""
        objects = [self._of_answer(answer) for answer in answers]
        return objects[0] if len(objects) == 1 else objects

    def _chunk(self, delta: Delta) -> dict[str, Any]:
        self._num_predicted[delta.index] += len(delta.token_ids)
        return {
            "index": delta.index,
            "content": delta.text,
            "tokens": delta.token_ids,
            "stop": False,
            "id_slot": delta.index,
            "tokens_predicted": self._num_predicted[delta.index],
            "tokens_evaluated": len(self._generation.prompts[delta.index].token_ids),
            **self._probabilities(delta),
        }

    def _of_answer(self, answer: Answer) -> dict[str, Any]:
        self._num_predicted[answer.index] = len(answer.token_ids)
        tokens = answer.token_ids if self._call.returns_tokens else []
        last = self._last(answer.index, answer.text, answer.finish_reason)
        return {**last, "tokens": tokens, **self._probabilities(answer)}

    def _probabilities(self, piece: Delta | Answer) -> dict[str, Any]:
        shape = None if self._logprobs is None else self._logprobs.shape(piece)
        return {} if shape is None else {"completion_probabilities": shape["content"]}

    def _last(self, index: int, text: str, reason: FinishReason | None) -> dict[str, Any]:
        stop, prompt = self._generation.stop_strings[index], self._generation.prompts[index]
        return {
            "index": index,
            "content": text,
            "tokens": [],
            "id_slot": index,
            "stop": True,
            "model": self._context.model,
            "tokens_predicted": self._num_predicted[index],
            "tokens_evaluated": len(prompt.token_ids),
            "generation_settings": self._settings(),
            "has_new_line": "\n" in text,
            "truncated": False,
            "stop_type": _stop_type(reason, stop),
            "stopping_word": stop or "",
            "tokens_cached": self._generation.usage.num_cached_tokens,
            "timings": self._timings(),
        }

    def _settings(self) -> dict[str, Any]:
        request = self._call.request
        length = -1 if request.max_tokens is None else request.max_tokens
        return {**request.sampling, "n_predict": length, "stop": request.stops}

    def _timings(self) -> dict[str, Any]:
        usage, timings = self._generation.usage, self._generation.timings
        return timings_object(
            timings, usage.num_prompt_tokens, usage.num_cached_tokens, usage.num_completion_tokens,
            time.perf_counter() - self._began,
        )  # fmt: skip


def timings_object(
    timings: Timings | None, num_prompt: int, num_cached: int, num_predicted: int, seconds: float
) -> dict[str, Any]:
    """llama.cpp's `timings`; several answers share the `seconds` that they took together."""
    prompt_s = seconds if timings is None else timings.time_to_first_token - timings.queue_time
    predicted_s = seconds if timings is None else timings.generation_time - prompt_s
    num_computed = max(num_prompt - num_cached, 0)
    return {
        "cache_n": num_cached,
        "prompt_n": num_computed,
        "prompt_ms": 1000 * prompt_s,
        "prompt_per_token_ms": 1000 * prompt_s / max(num_computed, 1),
        "prompt_per_second": num_computed / max(prompt_s, 1e-9),
        "predicted_n": num_predicted,
        "predicted_ms": 1000 * predicted_s,
        "predicted_per_token_ms": 1000 * predicted_s / max(num_predicted, 1),
        "predicted_per_second": num_predicted / max(predicted_s, 1e-9),
    }


def _stop_type(reason: FinishReason | None, stop: str | None) -> str:
    if stop is not None:
        return "word"
    return {FinishReason.STOP: "eos", FinishReason.LENGTH: "limit"}.get(reason or FinishReason.STOP, "none")


class LlamaCompletionCall(BodyCall):
    """A completion request with llama.cpp's names."""

    def __init__(self, body: LlamaCompletionRequest, prompts: Sequence[PromptSource]) -> None:
        self._num_logprobs = body.logprobs
        self.returns_tokens = body.return_tokens is True
        super().__init__(to_request(body, prompts), body.request_id, body.ignored, body.stream is True)

    @classmethod
    def parse(cls, body: Any) -> LlamaCompletionCall:
        request = LlamaCompletionRequest.parse(body)
        sources = [TextPrompt(prompt) if isinstance(prompt, str) else TokenPrompt(prompt) for prompt in request.prompt]
        return cls(request, sources)

    @classmethod
    def parse_infill(cls, body: Any) -> LlamaCompletionCall:
        request = InfillRequest.parse(body)
        before = request.input_prefix + (request.prompt if isinstance(request.prompt, str) else "")
        return cls(request, [InfillPrompt(before, request.input_suffix, request.context)])

    def make_writer(self, generation: Generation, context: AnswerContext) -> LlamaCompletionWriter:
        logprobs = None
        if self._num_logprobs is not None:
            prompts = [prompt.token_ids for prompt in generation.prompts]
            logprobs = ChatLogprobs(context.tokenizer, prompts, 1, (), of_answers=True, with_ids=True)
        return LlamaCompletionWriter(self, generation, context, logprobs)

    def encode_progress(
        self, progress: PromptProgress, index: int, framing: Framing, request_id: str, model: str
    ) -> bytes:
        return framing.frame(orjson.dumps({"prompt_progress": progress_object(progress, index)}))


COMPLETION = BodyRoute("/completion", LlamaCompletionCall.parse, error_object, FRAMING)
ALSO_COMPLETION = BodyRoute("/completions", LlamaCompletionCall.parse, error_object, FRAMING)
INFILL = BodyRoute("/infill", LlamaCompletionCall.parse_infill, error_object, FRAMING)
