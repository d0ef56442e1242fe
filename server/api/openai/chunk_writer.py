"""The base class of the writers of OpenAI's completions, which encodes the constant parts of chunks once."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from server.api.openai.llama_timings import timings_of
from server.api.openai.logprobs import WireLogprobs
from server.api.openai.openai_objects import ResponseHead, metrics_object, stop_reason, usage_object
from server.api.route import AnswerContext, AnswerWriter
from server.generation.answers import Answer
from server.generation.generation import Generation
from server.generation.output_sequence import Delta
from server.protocol.generation_fields import GenerationFields
from server.text.detokenizer import text_with_names

# Fields of whole answers that vLLM always sends: its clients look for them without asking whether they are there.
NULLS: Mapping[str, None] = {"metrics": None, "kv_transfer_params": None}
_PROBE = "\ue000"  # a placeholder for the text


class ChunkWriter(AnswerWriter):
    """Writes one answer as chunks with `choices`, or as one body of the same kind."""

    chunk_object: str  # the `object` of each chunk

    def __init__(
        self,
        head: ResponseHead,
        fields: GenerationFields,
        generation: Generation,
        logprobs: WireLogprobs | None,
        context: AnswerContext,
    ) -> None:
        framing = context.framing
        self.is_slow = logprobs is not None or fields.is_verbose
        self._tokenizer = context.tokenizer
        self._answer_head = head
        self._fields = fields
        self._generation = generation
        self._logprobs = logprobs
        self._framing = framing
        self._with_token_ids = fields.return_token_ids is True
        self._silent = set(range(generation.num_choices))  # choices of which nothing has been sent yet
        # If the stream ends with a usage chunk, every other chunk has a usage of null.
        self._head = framing.before + head.encode(self.chunk_object)
        self._constant_tail = (b',"usage":null}' if fields.wants_usage else b"}") + framing.after
        self._tells_usage = fields.wants_continuous_usage
        self._tells_timings = fields.timings_per_token is True
        # Whether nothing but the text differs between the chunks of a choice, from its second to its last but one. The
        # bytes around the text are then taken from the first of them, by the choice's index.
        is_constant = not (self._with_token_ids or self._tells_usage or self._tells_timings)
        self._has_constants = logprobs is None and is_constant
        self._around: dict[int, tuple[bytes, bytes]] = {}

    def encode(self, deltas: Sequence[Delta]) -> list[bytes]:
        chunks = []
        for delta in deltas:
            around = self._around.get(delta.index)
            if around is not None and delta.text and delta.finish_reason is None:
                chunks.append(around[0] + orjson.dumps(delta.text) + around[1])
            else:
                chunks.append(self._encode(delta))
                if around is None and delta.text and self._has_constants:
                    self._around[delta.index] = self._find_constants(delta.index)
        return chunks

    def _find_constants(self, index: int) -> tuple[bytes, bytes]:
        """The bytes before and behind a text of this choice, which has had its first chunk."""
        before, _, behind = self._encode(Delta(index, _PROBE, [], None)).rpartition(orjson.dumps(_PROBE))
        return before, behind

    def end(self) -> list[bytes]:
        """A chunk without choices, with the usage and the timings that are wanted, and the stream's end."""
        extra: dict[str, Any] = {}
        if self._fields.wants_usage:
            extra["usage"] = self._usage()
            extra |= self._timings()
        extra |= self._metrics()
        if not extra:
            return [self._framing.done]
        return [self._head + b',"choices":[],' + orjson.dumps(extra)[1:] + self._framing.after, self._framing.done]

    def _stops(self, piece: Delta | Answer) -> dict[str, str | int | None]:
        """What has ended a choice: vLLM's `stop_reason` names what the request has asked for, SGLang's any token."""
        matched = piece.matched_stop
        return {"stop_reason": stop_reason(matched, self._fields.stop_token_ids or ()), "matched_stop": matched}

    def _encoded_stops(self, delta: Delta) -> bytes:
        """The same as JSON behind a `finish_reason`; nothing while the choice goes on."""
        return b"" if delta.finish_reason is None else b"," + orjson.dumps(self._stops(delta))[1:-1]

    def _usage(self) -> dict[str, object]:
        return usage_object(self._generation.usage)

    def _timings(self) -> dict[str, Any]:
        return {"timings": timings_of(self._generation)} if self._tells_timings else {}

    def _metrics(self) -> dict[str, Any]:
        timings = self._generation.timings if self._fields.include_metrics else None
        return {} if timings is None else {"metrics": metrics_object(timings)}

    def _verbose(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """llama.cpp's `__verbose`: what the model has read and written, as it is. Of the first answer."""
        if not self._fields.is_verbose:
            return {}
        prompt, answer = self._generation.prompts[0].token_ids, answers[0]
        text = text_with_names(self._tokenizer, prompt)
        return {"__verbose": {"prompt": text, "content": answer.text, "tokens": answer.token_ids}}

    @property
    def _tail(self) -> bytes:
        if not self._tells_usage and not self._tells_timings:
            return self._constant_tail
        more = self._timings()
        if self._fields.wants_usage:
            more["usage"] = self._usage() if self._tells_usage else None
        return b"," + orjson.dumps(more)[1:] + self._framing.after

    @abstractmethod
    def _encode(self, delta: Delta) -> bytes: ...
