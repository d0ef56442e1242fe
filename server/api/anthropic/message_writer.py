"""Writes an answer as Anthropic's message, whole or as events."""

from collections.abc import Sequence
from typing import Any

from engine.interface.types import FinishReason
from server.api.anthropic.block_writer import BlockWriter
from server.api.anthropic.message_objects import encode_error, encode_event, stop_reason, usage_object
from server.api.route import AnswerContext, AnswerWriter
from server.generation.answers import Answer
from server.generation.generation import Generation
from server.generation.output_sequence import Delta
from server.output_parsers.output_parser import OutputFormat, OutputParser
from server.protocol.errors import ApiError


class MessageWriter(AnswerWriter):
    """Writes the only answer of a generation, for which the model may have room for fewer than `max_tokens`."""

    def __init__(
        self, generation: Generation, context: AnswerContext, parts: OutputFormat, blocks: BlockWriter, max_tokens: int
    ) -> None:
        self._generation = generation
        self._context = context
        self._has_reasoning = parts.reasoning is not None
        self._is_plain = parts.is_plain  # so that texts need no parser
        self._parts = OutputParser(parts, generation.prompts[0].token_ids, generation.tokenizer)
        self._blocks = blocks
        self._max_tokens = max_tokens
        self._has_begun = False

    def encode(self, deltas: Sequence[Delta]) -> list[bytes]:
        """Events. The first has the number of cached prompt tokens, which is known with the first token."""
        events: list[bytes] = [] if self._has_begun else [self._begin()]
        for delta in deltas:
            if self._is_plain:
                if delta.text:
                    events += self._blocks.add_text(delta.text)
            else:
                events += self._blocks.feed(self._read(delta.text, delta.token_ids, delta.finish_reason is not None))
        return events

    def end(self) -> list[bytes]:
        events = list(self._blocks.close())
        try:
            delta = self._ending()
        except ApiError as error:
            return [*events, encode_error(error.without_traces(), self._context.request_id)]
        last = encode_event("message_delta", delta=delta, usage=self._usage())
        return [*events, last, encode_event("message_stop")]

    def to_dict(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """The whole message; raises ApiError if the answer was cut off."""
        (answer,) = answers
        for _ in self._blocks.feed(self._read(answer.text, answer.token_ids, is_last=True)):
            pass
        for _ in self._blocks.close():
            pass
        return self._message(self._blocks.whole, **self._ending())

    def _read(self, text: str, token_ids: Sequence[int], is_last: bool) -> Any:
        return self._parts.feed(text, token_ids, is_last=is_last)

    def _begin(self) -> bytes:
        self._has_begun = True
        return encode_event("message_start", message=self._message([], stop_reason=None, stop_sequence=None))

    def _message(self, content: list[dict[str, Any]], **ending: str | None) -> dict[str, Any]:
        return {
            "id": f"msg_{self._context.request_id}",
            "type": "message",
            "role": "assistant",
            "model": self._context.model,
            "content": content,
            **ending,
            "usage": self._usage(),
        }

    def _usage(self) -> dict[str, Any]:
        return usage_object(self._generation.usage, self._parts.num_reasoning_tokens if self._has_reasoning else None)

    def _ending(self) -> dict[str, str | None]:
        reason, stop = self._generation.finish_reason, self._generation.stop_strings[0]
        stop_name = stop_reason(
            reason,
            is_stop_string=stop is not None,
            has_calls=self._parts.has_whole_calls,
            is_context_full=reason is FinishReason.LENGTH
            and self._generation.usage.num_completion_tokens < self._max_tokens,
        )
        return {"stop_reason": stop_name, "stop_sequence": stop}
