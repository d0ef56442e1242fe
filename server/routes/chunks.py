"""The answers of OpenAI's routes; in a stream's chunks, what never changes is encoded once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import orjson

from server.answering.choice import Delta
from server.answering.generation import Generation
from server.routes.framing import Framing
from server.routes.logprobs import WireLogprobs
from server.routes.openai_shapes import AnswerHead, shape_timings, shape_usage
from server.routes.route import AnswerWriter
from server.wire.generation_fields import GenerationFields


class Chunks(AnswerWriter):
    """Writes one answer as chunks with `choices`, or as one body of the same kind."""

    chunk_object: str  # the `object` of each chunk

    def __init__(
        self,
        head: AnswerHead,
        fields: GenerationFields,
        generation: Generation,
        logprobs: WireLogprobs | None,
        framing: Framing,
    ) -> None:
        self.is_slow = logprobs is not None
        self._answer_head = head
        self._fields = fields
        self._generation = generation
        self._logprobs = logprobs
        self._framing = framing
        self._with_token_ids = fields.return_token_ids is True
        # If the stream ends with a usage chunk, every other chunk has a usage of null.
        self._head = framing.before + head.encode(self.chunk_object)
        self._constant_tail = (b',"usage":null}' if fields.wants_usage else b"}") + framing.after
        self._tells_usage = fields.wants_continuous_usage

    def encode(self, deltas: Sequence[Delta]) -> list[bytes]:
        return [self._encode(delta) for delta in deltas]

    def end(self) -> bytes:
        """A chunk without choices, with the usage and the timings that are wanted, and the stream's end."""
        told: dict[str, Any] = {}
        if self._fields.wants_usage:
            told["usage"] = self._usage()
        told |= self._metrics()
        if not told:
            return self._framing.done
        return self._head + b',"choices":[],' + orjson.dumps(told)[1:] + self._framing.after + self._framing.done

    def _usage(self) -> dict[str, object]:
        """What has been used up to the last delta."""
        return shape_usage(self._generation.usage)

    def _metrics(self) -> dict[str, Any]:
        """What a whole answer, or the last chunk of a stream, has beside everything else."""
        timings = self._generation.timings if self._fields.include_metrics else None
        return {} if timings is None else {"metrics": shape_timings(timings)}

    @property
    def _tail(self) -> bytes:
        if not self._tells_usage:
            return self._constant_tail
        return b',"usage":%b}%b' % (orjson.dumps(self._usage()), self._framing.after)

    @abstractmethod
    def _encode(self, delta: Delta) -> bytes: ...
