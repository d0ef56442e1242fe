"""Writes one response: its object, and the events of its stream."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from engine.interface.types import FinishReason, PromptProgress
from server.api.openai.logprobs import ChatLogprobs
from server.api.openai.openai_objects import progress_object
from server.api.responses.events import Event, EventEncoder
from server.api.responses.items import Item
from server.api.responses.output_items import OutputItems
from server.api.responses.response_call import ResponseCall
from server.api.responses.response_object import Response, code_of, end_response, fail_response, usage_object
from server.api.route import AnswerContext
from server.generation.generation import Generation
from server.generation.output_sequence import Delta
from server.output_parsers.output_parser import OutputParser
from server.protocol.errors import ApiError

PROGRESS = "response.eagre.progress"


class ResponseWriter:
    """Events come out of it in their order: those of the beginning, of the deltas, and one that ends the stream."""

    def __init__(self, turn: ResponseCall, model: str, *, is_heard: bool) -> None:
        """Args:
        model: the name that clients know it by.
        is_heard: whether events are wanted, or only the object at the end.
        """
        self._turn = turn
        self._events = EventEncoder(turn.stream_id, is_heard=is_heard)
        self._output = OutputItems(self._events, turn.output_id)
        self._generation: Generation | None = None
        self._parts: OutputParser | None = None
        self._logprobs: ChatLogprobs | None = None
        self._is_created = False  # whether the first event was told
        self.response: Response = {**turn.response, "model": model}

    @property
    def is_slow(self) -> bool:
        """Whether the end, and the object, may take long to make; `end` then belongs in a worker thread."""
        return self._logprobs is not None

    def queue(self) -> list[Event]:
        """The first events of a response in the background."""
        self.response["status"] = "queued"
        self._create()
        self._tell("response.queued")
        return self._events.take()

    def tell_progress(self, progress: PromptProgress) -> list[Event]:
        """An event of this server's own that tells how the response waits for its first token.

        It is never the first: clients' helpers want `response.created` there, and pass over names that they do not
        know.
        """
        first = [] if self._is_created else self.queue()
        self._events.add(PROGRESS, prompt_progress=progress_object(progress, 0))
        return first + self._events.take()

    def begin(self, generation: Generation, context: AnswerContext) -> list[Event]:
        """The events before the first delta. Called once the request has been accepted."""
        body, self._generation = self._turn.body, generation
        (prompt,) = generation.prompts
        answer_format = context.answer_format.of_request(
            may_call=body.may_call,
            must_call=body.forced_calls is not None,
            schemas={tool.name: tool.parameters for tool in body.tools or ()},
        )
        self._parts = OutputParser(
            answer_format, prompt.token_ids, generation.tokenizer, num_begun=body.num_prompt_output_tokens or 0
        )
        if body.wants_logprobs:
            self._logprobs = ChatLogprobs(context.tokenizer, [prompt.token_ids], 1, (), of_answers=True)
        (params, *_) = prompt.params
        self.response |= {"status": "in_progress", "temperature": params.temperature, "top_p": params.top_p}
        self._create()
        self._tell("response.in_progress")
        return self._events.take()

    def encode(self, deltas: Sequence[Delta]) -> list[Event]:
        """The events that tell of `deltas`."""
        if self._turn.is_warm_up:
            return []
        for delta in deltas:
            self._feed(delta)
        return self._events.take()

    def end(self, *, is_shut_down: bool) -> list[Event]:
        """The last events; `response` is what it will be then.

        Args:
            is_shut_down: whether an abort is the server's doing.
        """
        generation = self._generation
        assert generation is not None
        reason = generation.finish_reason
        if self._turn.is_warm_up:
            self.response |= {"status": "completed", "completed_at": int(time.time()), "usage": self._usage()}
            self._tell("response.completed")
            return self._events.take()
        self._output.finish(is_whole=reason is FinishReason.STOP)
        self.response["usage"] = self._usage()
        self._tell(end_response(self.response, self._output.items, reason, int(time.time()), is_shut_down=is_shut_down))
        return self._events.take()

    def cancel(self, *, is_shut_down: bool) -> list[Event]:
        """The last events of a response whose task was cancelled."""
        self._create()
        if self._output.items:
            self._output.finish(is_whole=False)
        reason, now = FinishReason.ABORT, int(time.time())
        self._tell(end_response(self.response, self._output.items, reason, now, is_shut_down=is_shut_down))
        return self._events.take()

    def fail(self, error: ApiError) -> list[Event]:
        """The last events of a response that an error ends."""
        self._create()
        if self._output.items:
            self._output.finish(is_whole=False)
        if self._generation is not None:
            self.response["usage"] = self._usage()
        self._tell(fail_response(self.response, self._output.items, error.message, code_of(error)))
        return self._events.take()

    def _create(self) -> None:
        if not self._is_created:
            self._is_created = True
            self._tell("response.created")

    def _feed(self, delta: Delta) -> None:
        assert self._parts is not None
        parts = self._parts.feed(delta.text, delta.token_ids, is_last=delta.finish_reason is not None)
        self._output.feed(parts, self._shape_logprobs(delta))

    def _shape_logprobs(self, delta: Delta) -> list[Item]:
        """OpenAI's clients want the bytes of each token, which a control token has not."""
        if self._logprobs is None:
            return []
        shaped: dict[str, Any] = self._logprobs.shape(delta) or {"content": []}
        tokens: list[Item] = shaped["content"]
        for token in tokens:
            for entry in (token, *token["top_logprobs"]):
                entry["bytes"] = entry["bytes"] or []
        return tokens

    def _usage(self) -> dict[str, Any]:
        assert self._generation is not None
        usage = self._generation.usage
        if self._turn.is_warm_up:  # the one token that is made to compute the prompt is nobody's
            usage = usage._replace(num_completion_tokens=0)
        return usage_object(usage, 0 if self._parts is None else self._parts.num_reasoning_tokens)

    def _tell(self, kind: str) -> None:
        self._events.add(kind, response=self.response)
