"""The WebSocket /v1/stream: its messages, and how answers are written to it.

A client sends `generate` and `cancel`; the server sends `start`, `delta`, `done` and `error`. Each
message has the id that the client chose for the generation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import orjson

from engine.interface.types import FinishReason, PromptProgress
from server.api.framing import Framing
from server.api.openai.call import OpenAICall
from server.api.openai.chat import ChatCall
from server.api.openai.chat_deltas import NO_DELTA, ChatDelta, ChatDeltaParser, reasoning_fields
from server.api.openai.completions import CompletionCall
from server.api.openai.llama_timings import timings_of
from server.api.openai.logprobs import WireLogprobs
from server.api.openai.openai_objects import error_object, metrics_object, progress_object, stop_reason, usage_object
from server.api.route import AnswerContext, Call, Cancel, Generate, MessageRoute, Refusal, Resume, StreamWriter
from server.generation.generation import Generation
from server.generation.output_sequence import Delta
from server.protocol.errors import ApiError, invalid_value, shorten
from server.protocol.json_limits import parse_json
from server.telemetry.trace_context import trace_id

MAX_ID_LENGTH = 128  # characters

_UNSET = object()


class StreamCall(Call[StreamWriter]):
    """One `generate` message, whose body is that of a completion or of a chat completion."""

    def __init__(self, client_id: str, body: OpenAICall) -> None:
        super().__init__(body.request, body.request_id, body.ignored)
        self._client_id = client_id
        self._body = body

    @classmethod
    def parse(cls, message: Generate) -> StreamCall:
        body = {"stream": True, **message.body}
        if body["stream"] is not True:
            raise invalid_value(f"stream is {shorten(body['stream'])}; a WebSocket always streams", "stream")
        if "messages" not in body:
            return cls(message.id, CompletionCall.parse(body))
        if "prompt" in body:
            raise invalid_value("prompt and messages are both given; give one of them", "prompt")
        return cls(message.id, ChatCall.parse(body))

    def make_writer(self, generation: Generation, context: AnswerContext) -> StreamMessages:
        logprobs = self._body.make_logprobs(generation, context.tokenizer)
        make_parts = self._body.parts_maker(generation, context) if isinstance(self._body, ChatCall) else None
        return StreamMessages(
            self._client_id, generation, logprobs, context, self.ignored, make_parts,
            self._body.stop_token_ids, with_timings=self._body.wants_timings,
            with_llama_timings=self._body.wants_llama_timings,
            echoed=self._body.echoed if isinstance(self._body, ChatCall) else "",
        )  # fmt: skip

    def encode_progress(
        self, progress: PromptProgress, index: int, framing: Framing, request_id: str, model: str
    ) -> bytes:
        progress_body = progress_object(progress, index)
        return orjson.dumps({"type": "progress", "id": self._client_id, "prompt_progress": progress_body})


class StreamMessages(StreamWriter):
    """Writes the messages of one generation; `make_parts` makes the parser of one choice, None for plain content."""

    def __init__(
        self, client_id: str, generation: Generation, logprobs: WireLogprobs | None, context: AnswerContext,
        ignored: Sequence[str], make_parts: Callable[[], ChatDeltaParser] | None, stop_token_ids: Sequence[int], *,
        with_timings: bool, with_llama_timings: bool, echoed: str,
    ) -> None:  # fmt: skip
        self._echo = echoed  # what each choice begins with
        self._unechoed = set(range(generation.num_choices)) if echoed else set()
        self._parts = [] if make_parts is None else [make_parts() for _ in range(generation.num_choices)]
        self._stops: dict[int, str | int | None] = {}  # what has ended each choice, of what the request asked for
        self._stop_token_ids = stop_token_ids
        self._with_timings = with_timings
        self._with_llama_timings = with_llama_timings
        self._client_id = client_id
        self._ignored = ignored
        self._generation = generation
        self._logprobs = logprobs
        self._context = context
        self._head = b'{"type":"delta","id":%b,"index":' % orjson.dumps(client_id)

    def begin(self) -> list[bytes]:
        start = orjson.dumps(
            {
                "type": "start",
                "id": self._client_id,
                "stream_id": self._context.request_id,
                "model": self._context.model,
                "usage": {"prompt_tokens": self._generation.usage.num_prompt_tokens},
                **({} if (trace := trace_id()) is None else {"trace_id": trace}),
                **({} if self._context.stream is None else {"stream": self._context.stream}),
                **({"ignored": self._ignored} if self._ignored else {}),
            }
        )
        return [start]

    def encode(self, deltas: Sequence[Delta]) -> list[bytes]:
        """A message for each delta that is not empty; `done` has the rest."""
        for delta in deltas:
            if delta.finish_reason is not None:
                self._stops[delta.index] = stop_reason(delta.matched_stop, self._stop_token_ids)
        messages = self._encode_echoes(deltas) if self._unechoed else []
        if self._parts:
            return messages + [
                message for delta in deltas for message in self._encode_parts(delta, self._parts[delta.index])
            ]
        return messages + [self._encode(delta) for delta in deltas if delta.text or delta.token_ids]

    def _encode_echoes(self, deltas: Sequence[Delta]) -> list[bytes]:
        begun = [delta for delta in deltas if delta.index in self._unechoed]
        self._unechoed -= {delta.index for delta in begun}
        return [
            self._encode(Delta(delta.index, self._echo, [], None, None if delta.logprobs is None else []))
            for delta in begun
        ]

    def end(self) -> list[bytes]:
        num_reasoning = sum(parts.num_reasoning_tokens for parts in self._parts) if self._parts else None
        done: dict[str, object] = {
            "type": "done",
            "id": self._client_id,
            "finish_reason": self._reason(self._generation.finish_reason, self._parts),
            "stop_reason": self._stops.get(0),
            "usage": usage_object(self._generation.usage, num_reasoning),
        }
        if self._generation.num_choices > 1:
            done["finish_reasons"] = [
                self._reason(reason, self._parts[index : index + 1])
                for index, reason in enumerate(self._generation.finish_reasons)
            ]
            done["stop_reasons"] = [self._stops.get(index) for index in range(self._generation.num_choices)]
        timings = self._generation.timings if self._with_timings else None
        if timings is not None:
            done["metrics"] = metrics_object(timings)
        if self._with_llama_timings:
            done["timings"] = timings_of(self._generation)
        return [orjson.dumps(done)]

    @staticmethod
    def _reason(reason: FinishReason | None, parts: Sequence[ChatDeltaParser]) -> str | None:
        reasons = [of_choice.reason(reason) for of_choice in parts]
        return next((of_choice for of_choice in reasons if of_choice != reason), reason)

    def _encode_parts(self, delta: Delta, parts: ChatDeltaParser) -> list[bytes]:
        """No message where the delta is empty. Tokens are told with the last message of a delta."""
        *before, last = parts.feed(delta.text, delta.token_ids, is_last=delta.finish_reason is not None)
        without_tokens = Delta(delta.index, "", [], None, None if delta.logprobs is None else [])
        messages = [self._encode(replace(without_tokens, text=found.content), found) for found in before]
        if not last.is_empty or delta.token_ids:
            messages.append(self._encode(replace(delta, text=last.content), last))
        return messages

    def _encode(self, delta: Delta, parts: ChatDelta = NO_DELTA) -> bytes:
        more = b""
        if parts is not NO_DELTA:
            if parts.reasoning:
                more += b"," + orjson.dumps(reasoning_fields(parts.reasoning))[1:-1]
            if parts.tool_calls:
                more += b"," + orjson.dumps(parts.calls_fields)[1:-1]
        if self._logprobs is not None:
            more += b',"logprobs":' + self._logprobs.encode(delta) + self._logprobs.encode_prompt(delta)
        if self._with_llama_timings:
            more += b',"timings":' + orjson.dumps(timings_of(self._generation))
        text, token_ids = orjson.dumps(delta.text), orjson.dumps(delta.token_ids)
        return b'%b%d,"text":%b,"token_ids":%b%b}' % (self._head, delta.index, text, token_ids, more)


def read_message(text: str, max_bytes: int) -> Generate | Cancel | Resume | Refusal:
    """Parses a client's message; one of more than `max_bytes` in UTF-8 is rejected."""
    client_id = None
    try:
        frame = _parse_frame(text, max_bytes)
        client_id = _take_id(frame)
        match frame.pop("type", _UNSET):
            case "generate":
                return Generate(client_id, frame)
            case "cancel":
                _refuse_more(frame, "cancel")
                return Cancel(client_id)
            case "resume":
                return _read_resume(client_id, frame)
            case kind if kind is _UNSET:
                raise ApiError("type is required", param="type", code="missing_required_parameter")
            case kind:
                raise invalid_value(f"type is {shorten(kind)}; it must be generate, cancel or resume", "type")
    except ApiError as error:
        return Refusal(client_id, error.without_traces())


def encode_error(client_id: str | None, error: ApiError) -> bytes:
    """The error message of one generation or (None) of none."""
    return orjson.dumps({"type": "error", "id": client_id, **error_object(error)})


def _parse_frame(text: str, max_bytes: int) -> dict[str, Any]:
    if len(text) > max_bytes or len(text.encode()) > max_bytes:
        raise ApiError(
            f"the frame is larger than {max_bytes} bytes, the limit of this server", code="body_too_large", status=413
        )
    frame = parse_json(text, "frame")
    if not isinstance(frame, dict):
        raise ApiError(f"the frame is {shorten(frame)}; it must be an object", code="invalid_type")
    return frame


def _take_id(frame: dict[str, Any]) -> str:
    client_id = frame.pop("id", None)
    if not isinstance(client_id, str) or not 1 <= len(client_id) <= MAX_ID_LENGTH:
        raise invalid_value(f"id is {shorten(client_id)}; it must be a string of 1 to {MAX_ID_LENGTH} characters", "id")
    return client_id


def _read_resume(client_id: str, frame: dict[str, Any]) -> Resume:
    stream, after = frame.pop("stream", None), frame.pop("after", None)
    _refuse_more(frame, "resume")
    if not isinstance(stream, str):
        raise invalid_value(f"stream is {shorten(stream)}; it must be the stream of a start message", "stream")
    if after is not None and (isinstance(after, bool) or not isinstance(after, int | str)):
        raise invalid_value(f"after is {shorten(after)}; it must be the place of a message", "after")
    return Resume(client_id, stream, None if after is None else str(after))


def _refuse_more(frame: dict[str, Any], kind: str) -> None:
    for name in frame:
        raise ApiError(f"unknown parameter {shorten(name)} of {kind}", param=name, code="unknown_parameter")


def readdress(message: bytes, client_id: str, reader_id: str, place: bytes | None) -> bytes:
    """A message of a resumable stream, with the id that its reader uses and, at the end, its place."""
    if reader_id != client_id:  # the id precedes everything that an answer could contain
        message = message.replace(b'"id":' + orjson.dumps(client_id), b'"id":' + orjson.dumps(reader_id), 1)
    if place is None:
        return message
    return b'%b,"place":%b}' % (message[:-1], place if place.isdigit() else b'"%b"' % place)


STREAM = MessageRoute("/v1/stream", read_message, StreamCall.parse, encode_error, error_object, readdress)
