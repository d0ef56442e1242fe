"""The answers of OpenAI's routes; in a stream's chunks, what never changes is encoded once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import orjson

from server.answering.choice import Delta
from server.answering.generation import Generation
from server.routes.framing import Framing
from server.routes.logprobs import WireLogprobs
from server.routes.openai_shapes import AnswerHead, shape_usage
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
        self._tail = (b',"usage":null}' if fields.wants_usage else b"}") + framing.after

    def encode(self, deltas: Sequence[Delta]) -> list[bytes]:
        return [self._encode(delta) for delta in deltas]

    def end(self) -> bytes:
        """The usage chunk where it is wanted, which has no choices, and the stream's end."""
        if not self._fields.wants_usage:
            return self._framing.done
        usage = orjson.dumps(shape_usage(self._generation.usage))
        return self._head + b',"choices":[],"usage":' + usage + b"}" + self._framing.after + self._framing.done

    @abstractmethod
    def _encode(self, delta: Delta) -> bytes: ...
