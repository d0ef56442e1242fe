"""POST /completion and /infill: from llama.cpp's bodies to generation requests, and to its answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import orjson

from engine.interface.types import FinishReason, PromptProgress
from server.api.framing import SERVER_SENT_EVENTS, Framing
from server.api.llama_cpp.completion_request import InfillRequest, LlamaCompletionRequest
from server.api.llama_cpp.drawn_probabilities import DrawnProbabilities
from server.api.llama_cpp.generation_settings import settings_object
from server.api.openai.call import to_request
from server.api.openai.llama_timings import progress_timings, timings_object
from server.api.openai.logprobs import ChatLogprobs
from server.api.openai.openai_objects import progress_object
from server.api.route import AnswerContext, AnswerWriter, BodyCall, BodyRoute
from server.generation.answers import Answer
from server.generation.generation import Generation
from server.generation.output_sequence import Delta
from server.generation.prompt_sources import InfillPrompt, PromptSource
from server.generation.prompts import PreparedPrompt
from server.protocol.errors import EXCEED_CONTEXT_SIZE, ApiError, ContextLengthExceeded
from server.text.detokenizer import text_with_names

_PROMPT = "prompt"  # of a whole answer, where `response_fields` names it
_MISSING = object()
FRAMING = replace(SERVER_SENT_EVENTS, done=b"")  # its streams end with the chunk that has `stop`


def error_object(error: ApiError, _request_id: str | None = None) -> dict[str, Any]:
    """The body of an error, as llama.cpp writes it."""
    body = {"code": error.status, "message": error.message, "type": error.type, "param": error.param}
    if isinstance(error, ContextLengthExceeded):
        body["message"] = f"the request exceeds the available context size ({error.limit} tokens): {error.message}"
        body |= {"type": EXCEED_CONTEXT_SIZE, "n_prompt_tokens": error.num_tokens, "n_ctx": error.limit}
    return {"error": body}


class _Ending(NamedTuple):
    """What the last objects of all answers share; a request may have a thousand answers."""

    stop_strings: Sequence[str | None]
    num_cached: int
    timings: dict[str, Any]
    biases: orjson.Fragment


class LlamaCompletionWriter(AnswerWriter):
    """Writes the answers of a generation, whole or as chunks."""

    def __init__(
        self,
        call: LlamaCompletionCall,
        generation: Generation,
        context: AnswerContext,
        logprobs: ChatLogprobs | None,
    ) -> None:
        self._fields = call.fields
        self._names = call.fields.response_fields or ()
        self.is_slow = logprobs is not None or _PROMPT in self._names
        self._call = call
        self._generation = generation
        self._context = context
        self._logprobs = logprobs
        self._num_predicted = [0] * generation.num_choices
        self._adapters = [{"id": number, "scale": scale} for number, scale in call.request.adapters]

    def encode(self, deltas: Sequence[Delta]) -> list[bytes]:
        if self._fields.is_prompt_only:
            return []
        more = {"timings": self._timings()} if self._fields.timings_per_token else {}
        return [self._context.framing.frame(orjson.dumps({**self._chunk(delta), **more})) for delta in deltas]

    def end(self) -> list[bytes]:
        ending = self._ending()
        return [
            self._context.framing.frame(orjson.dumps(self._selected(self._last(index, "", reason, ending))))
            for index, reason in enumerate(self._generation.finish_reasons)
        ]

    def to_dict(self, answers: Sequence[Answer]) -> Any:
        """One object, or a list of them where the request has several prompts."""
        ending = self._ending()
        objects = [self._selected(self._of_answer(answer, ending)) for answer in answers]
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
            "tokens_evaluated": len(self._prompt_of(delta.index).token_ids),
            **self._probabilities(delta),
        }

    def _of_answer(self, answer: Answer, ending: _Ending) -> dict[str, Any]:
        prompt = self._prompt_of(answer.index)
        # Not in streams, whose last chunk is made on the asyncio thread: a prompt may be very long.
        more = {_PROMPT: text_with_names(self._context.tokenizer, prompt.token_ids)} if _PROMPT in self._names else {}
        if self._fields.is_prompt_only:
            return {**self._last(answer.index, "", answer.finish_reason, ending), **more}
        self._num_predicted[answer.index] = len(answer.token_ids)
        tokens = answer.token_ids if self._fields.return_tokens else []
        last = self._last(answer.index, answer.text, answer.finish_reason, ending)
        return {**last, "tokens": tokens, **self._probabilities(answer), **more}

    def _probabilities(self, piece: Delta | Answer) -> dict[str, Any]:
        shape = None if self._logprobs is None else self._logprobs.shape(piece)
        return {} if shape is None else {"completion_probabilities": shape["content"]}

    def _ending(self) -> _Ending:
        generation = self._generation
        params = generation.prompts[0].params[0]
        biases: list[dict[str, Any]] = [{"token": token_id, "bias": bias} for token_id, bias in params.logit_bias]
        if params.ignore_eos:  # minus infinity is null in llama.cpp's answers
            biases += [{"token": token_id, "bias": None} for token_id in self._context.tokenizer.eos_token_ids]
        return _Ending(
            generation.stop_strings, generation.usage.num_cached_tokens, self._timings(),
            orjson.Fragment(orjson.dumps(biases)),
        )  # fmt: skip

    def _last(self, index: int, text: str, reason: FinishReason | None, ending: _Ending) -> dict[str, Any]:
        stop, prompt, request = ending.stop_strings[index], self._prompt_of(index), self._call.request
        if self._fields.is_prompt_only:
            reason, length = FinishReason.LENGTH, 0
        else:
            length = -1 if request.default_max_tokens is None else request.default_max_tokens
        settings = settings_object(
            prompt.params[0], num_predicted=length, stops=request.stops, is_streamed=self._call.is_streamed
        )
        return {
            "index": index,
            "content": text,
            "tokens": [],
            "id_slot": index,
            "stop": True,
            "model": self._context.model,
            "tokens_predicted": self._num_predicted[index],
            "tokens_evaluated": len(prompt.token_ids),
            "generation_settings": {**settings, "logit_bias": ending.biases, "lora": self._adapters},
            "has_new_line": "\n" in text,
            # By the end of the context.
            "truncated": reason is FinishReason.LENGTH and not 0 <= length <= self._num_predicted[index],
            "stop_type": _stop_type(reason, stop),
            "stopping_word": stop or "",
            "tokens_cached": ending.num_cached,
            "timings": ending.timings,
        }

    def _prompt_of(self, index: int) -> PreparedPrompt:
        return self._generation.prompts[index // self._fields.num_choices]

    def _selected(self, last: dict[str, Any]) -> dict[str, Any]:
        """The values that `response_fields` names by their paths; all of them where it names none."""
        if not self._names:
            return last
        selected = {}
        for path in self._names:
            value: Any = last
            for name in path.split("/"):
                value = value.get(name, _MISSING) if isinstance(value, dict) else _MISSING
            if value is not _MISSING:
                selected[path] = value
        return selected

    def _timings(self) -> dict[str, Any]:
        usage, timings = self._generation.usage, self._generation.timings
        num_predicted = 0 if self._fields.is_prompt_only else usage.num_completion_tokens
        return timings_object(
            timings, usage.num_prompt_tokens, usage.num_cached_tokens, num_predicted, self._generation.duration
        )


def _stop_type(reason: FinishReason | None, stop: str | None) -> str:
    if stop is not None:
        return "word"
    return {FinishReason.STOP: "eos", FinishReason.LENGTH: "limit"}.get(reason or FinishReason.STOP, "none")


class LlamaCompletionCall(BodyCall):
    """A completion request with llama.cpp's names."""

    def __init__(self, body: LlamaCompletionRequest, prompts: Sequence[PromptSource]) -> None:
        self.fields = body
        length: dict[str, Any] = {}
        if body.max_tokens is not None and body.max_tokens >= 1:  # at most as many as the context has room for
            length = {"max_tokens": None, "default_max_tokens": body.max_tokens}
        request = to_request(body, prompts, text_biases=body.text_biases, **length)
        if body.post_sampling_probs and body.logprobs is not None:
            request = replace(request, sampling={**request.sampling, "drawn_logprobs": True})
        super().__init__(request, body.request_id, body.ignored, body.stream is True)

    @classmethod
    def parse(cls, body: Any) -> LlamaCompletionCall:
        request = LlamaCompletionRequest.parse(body)
        return cls(request, request.prompt)

    @classmethod
    def parse_infill(cls, body: Any) -> LlamaCompletionCall:
        request = InfillRequest.parse(body)
        before = request.input_prefix + (request.prompt if isinstance(request.prompt, str) else "")
        return cls(request, [InfillPrompt(before, request.input_suffix, request.context)])

    def make_writer(self, generation: Generation, context: AnswerContext) -> LlamaCompletionWriter:
        logprobs = None
        if self.fields.logprobs is not None:
            prompts = [prompt.token_ids for prompt in generation.prompts]
            kind = DrawnProbabilities if self.fields.post_sampling_probs else ChatLogprobs
            logprobs = kind(context.tokenizer, prompts, self.fields.num_choices, (), of_answers=True, with_ids=True)
        return LlamaCompletionWriter(self, generation, context, logprobs)

    def encode_progress(
        self, progress: PromptProgress, index: int, framing: Framing, request_id: str, model: str
    ) -> bytes:
        chunk: dict[str, Any] = {
            "index": index,
            "content": "",
            "tokens": [],
            "stop": False,
            "id_slot": index,
            "tokens_predicted": 0,
            "tokens_evaluated": progress.num_prompt_tokens,
            "prompt_progress": progress_object(progress, index),
        }
        if self.fields.timings_per_token:
            chunk["timings"] = progress_timings(progress)
        return framing.frame(orjson.dumps(chunk))


COMPLETION = BodyRoute("/completion", LlamaCompletionCall.parse, error_object, FRAMING)
ALSO_COMPLETION = BodyRoute("/completions", LlamaCompletionCall.parse, error_object, FRAMING)
INFILL = BodyRoute("/infill", LlamaCompletionCall.parse_infill, error_object, FRAMING)
