"""Writes one response: its object, and the events of its stream."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from engine.interface.types import FinishReason, PromptProgress
from server.api.openai.llama_timings import timings_of
from server.api.openai.logprobs import ChatLogprobs
from server.api.openai.openai_objects import progress_object
from server.api.responses.events import EventEncoder
from server.api.responses.items import Item
from server.api.responses.output_items import OutputItems
from server.api.responses.response_call import ResponseCall
from server.api.responses.response_object import Response, code_of, end_response, fail_response, usage_object
from server.api.route import AnswerContext, StreamWriter
from server.generation.generation import Generation
from server.generation.output_sequence import Delta
from server.output_parsers.output_parser import OutputParser
from server.protocol.errors import ApiError

IN_PROGRESS = "response.in_progress"
ENCRYPTED_REASONING = "reasoning.encrypted_content"


class ResponseWriter(StreamWriter):
    """Encodes one response as events: those of the beginning, of the deltas, and of the end.

    `start` comes first.
    """

    def __init__(
        self, turn: ResponseCall, model: str, *, is_streamed: bool, as_messages: bool, is_shut_down: Callable[[], bool]
    ) -> None:
        """Encodes events if `is_streamed`, as messages of a WebSocket if `as_messages`.

        `is_shut_down` tells whether the server ends, so that an abort is not the client's doing.
        """
        self._turn = turn
        self._is_shut_down = is_shut_down
        self._events = EventEncoder(turn.stream_id, is_wanted=is_streamed, as_messages=as_messages)
        seals = ENCRYPTED_REASONING in (turn.body.include or ())
        self._output = OutputItems(self._events, turn.output_id, seals_reasoning=seals)
        self._generation: Generation | None = None
        self._parts: OutputParser | None = None
        self._logprobs: ChatLogprobs | None = None
        self._is_plain = False  # whether all text is content, and nothing is told beside it
        self._is_created = False  # whether the first event was told
        self._last_kind = ""  # of the events
        self.response: Response = {**turn.response, "model": model}

    @property
    def is_slow(self) -> bool:
        """Whether the end, and the object, may take long to make; `end` then belongs in a worker thread."""
        return self._logprobs is not None

    def queue(self) -> list[bytes]:
        """The first events of a response in the background."""
        self.response["status"] = "queued"
        self._create()
        self._tell("response.queued")
        return self._events.take()

    def tell_progress(self, progress: PromptProgress) -> list[bytes]:
        """An event that tells how the response waits for its first token, in llama.cpp's form.

        It is never the first: clients' helpers want `response.created` there.
        """
        first = [] if self._is_created else self.queue()
        response = {**self.response, "status": "in_progress"}
        self._events.add(IN_PROGRESS, response=response, prompt_progress=progress_object(progress, 0))
        return first + self._events.take()

    def start(self, generation: Generation, context: AnswerContext) -> None:
        """Says that the request is accepted."""
        body, self._generation = self._turn.body, generation
        (prompt,) = generation.prompts
        tools = self._output.tools = self._turn.tools
        answer_format = context.answer_format.of_request(
            may_call=tools.may_call,
            must_call=tools.forced_calls is not None,
            schemas=tools.schemas,
            is_parallel=tools.tool_policy.is_parallel,
        )
        self._parts = OutputParser(
            answer_format, prompt.token_ids, generation.tokenizer, num_begun=body.num_prompt_output_tokens or 0
        )
        if body.wants_logprobs:
            self._logprobs = ChatLogprobs(context.tokenizer, [prompt.token_ids], 1, (), of_answers=True)
        (params, *_) = prompt.params
        self._is_plain = answer_format.is_plain and not body.wants_logprobs
        self.response |= {"status": "in_progress", "temperature": params.temperature, "top_p": params.top_p}

    def begin(self) -> list[bytes]:
        self._create()
        self._tell(IN_PROGRESS)
        return self._events.take()

    def encode(self, deltas: Sequence[Delta]) -> list[bytes]:
        if self._turn.is_warm_up:
            return []
        if self._turn.body.timings_per_token:
            self._events.behind_texts = b"," + orjson.dumps(self._timings())[1:-1]
        for delta in deltas:
            if not self._is_plain:
                self._feed(delta)
            elif delta.text:
                self._output.add_content(delta.text)
        return self._events.take()

    def end(self) -> list[bytes]:
        """The last events; `response` is what it will be then."""
        generation = self._generation
        assert generation is not None
        reason = generation.finish_reason
        if self._turn.is_warm_up:
            self.response |= {"status": "completed", "completed_at": int(time.time()), "usage": self._usage()}
            self._tell("response.completed")
            return self._events.take()
        self._output.finish(is_whole=reason is FinishReason.STOP)
        self.response["usage"] = self._usage()
        self._tell_end(reason)
        return self._events.take()

    def cancel(self) -> list[bytes]:
        """The last events of a response whose task was cancelled."""
        self._create()
        if self._output.items:
            self._output.finish(is_whole=False)
        self._tell_end(FinishReason.ABORT)
        return self._events.take()

    def end_differently(self, last: list[bytes], **fields: Any) -> list[bytes]:
        """The last events once more, which are not sent yet, after fields of the response have changed."""
        self.response |= fields
        return self._events.replace_last(last, self._last_kind, response=self.response, **self._last_timings())

    def fail(self, error: ApiError) -> list[bytes]:
        """The last events of a response that an error ends."""
        self._create()
        if self._output.items:
            self._output.finish(is_whole=False)
        if self._generation is not None:
            self.response["usage"] = self._usage()
        self._tell(fail_response(self.response, self._output.items, error.message, code_of(error)))
        return self._events.take()

    def _tell_end(self, reason: FinishReason | None) -> None:
        now, is_shut_down = int(time.time()), self._is_shut_down()
        self._tell(end_response(self.response, self._output.items, reason, now, is_shut_down=is_shut_down))

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
        self._last_kind = kind
        self._events.add(kind, response=self.response, **self._last_timings())

    def _timings(self) -> dict[str, Any]:
        """llama.cpp's `timings`, where the request asks for them."""
        generation = self._generation
        if generation is None or not self._turn.body.timings_per_token:
            return {}
        return {"timings": timings_of(generation)}

    def _last_timings(self) -> dict[str, Any]:
        """The same, in the event that ends the response."""
        return self._timings() if self.response["status"] not in ("queued", "in_progress") else {}
