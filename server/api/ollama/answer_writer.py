"""Writes an answer in Ollama's form: lines of JSON, or one object."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import orjson

from engine.interface.types import FinishReason
from server.api.framing import Framing
from server.api.openai.chat_deltas import ChatDelta, ChatDeltaParser
from server.api.openai.logprobs import WireLogprobs
from server.api.route import AnswerWriter
from server.generation.answers import Answer
from server.generation.generation import Generation
from server.generation.output_sequence import Delta
from server.protocol.custom_tools import INPUT

NDJSON = Framing(
    after=b"\n",
    headers={"Content-Type": "application/x-ndjson", "X-Accel-Buffering": "no"},
    # The id is the first field of the line's object.
    id_before=b'{"event_id":"',
    id_after=b'",',
    num_replaced=len(b"{"),
)
_NANOSECONDS = 1e9
_REASONS = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


class AnswerLines(AnswerWriter):
    """Writes the only answer of a generation.

    Ollama's clients get each tool call in one piece, with its arguments as an object, so the writer holds a call back
    until it is complete.

    Args:
        parser: splits thinking and tool calls from content; None: all text is content.
        logprobs: writes the log probabilities; None: there are none.
        is_chat: whether the text is a message; otherwise it is a `response`.
    """

    def __init__(
        self,
        generation: Generation,
        model: str,
        parser: ChatDeltaParser | None,
        logprobs: WireLogprobs | None,
        *,
        is_chat: bool,
    ) -> None:
        self._generation = generation
        self._model = model
        self._parser = parser
        self._logprobs = logprobs
        self.is_slow = logprobs is not None
        self._is_chat = is_chat
        self._began = time.perf_counter()
        self._call: dict[str, Any] | None = None  # that is being written

    def encode(self, deltas: Sequence[Delta]) -> list[bytes]:
        lines = []
        for delta in deltas:
            is_last = delta.finish_reason is not None
            parts = self._read(delta.text, delta.token_ids, is_last=is_last)
            found = [self._fields(part) for part in parts]
            if is_last:
                found.append(_calls(self._take_call()))
            told, logprobs = [fields for fields in found if fields], self._shaped(delta)
            if not logprobs:
                lines += [self._line(fields, done=False) for fields in told]
                continue
            *before, last = told or [{}]  # tokens whose text comes later
            lines += [self._line(fields, done=False) for fields in before]
            lines.append(self._line(last, done=False, **logprobs))
        return lines

    def end(self) -> list[bytes]:
        return [self._line({"content": ""}, done=True, **self._ending(self._generation.finish_reason))]

    def to_dict(self, answers: Sequence[Answer]) -> dict[str, Any]:
        (answer,) = answers
        parts = self._read(answer.text, answer.token_ids, is_last=True)
        calls = [call for part in parts for call in self._complete_calls(part.tool_calls)] + self._take_call()
        fields = {"content": "".join(part.content for part in parts)}
        if thinking := "".join(part.reasoning for part in parts):
            fields["thinking"] = thinking
        ending = {**self._shaped(answer), **self._ending(answer.finish_reason)}
        return self._object({**fields, **_calls(calls)}, done=True, **ending)

    def _shaped(self, piece: Delta | Answer) -> dict[str, Any]:
        """The log probabilities of a piece's tokens as a field; empty where there are none."""
        shaped = None if self._logprobs is None else self._logprobs.shape(piece)
        return {"logprobs": shaped["content"]} if shaped and shaped["content"] else {}

    def _read(self, text: str, token_ids: Sequence[int], *, is_last: bool) -> list[ChatDelta]:
        if self._parser is None:
            return [ChatDelta("", text, [])]
        return self._parser.feed(text, token_ids, is_last=is_last)

    def _fields(self, delta: ChatDelta) -> dict[str, Any]:
        """The fields of a message that are not empty."""
        fields = {"content": delta.content, "thinking": delta.reasoning}
        return {name: value for name, value in fields.items() if value} | _calls(self._complete_calls(delta.tool_calls))

    def _complete_calls(self, pieces: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        complete: list[dict[str, Any]] = []
        for piece in pieces:
            part, key = (piece["custom"], INPUT) if "custom" in piece else (piece["function"], "arguments")
            if "id" in piece:
                complete += self._take_call()
                self._call = {"id": piece["id"], "index": piece["index"], "name": part["name"], key: ""}
            assert self._call is not None
            self._call[key] += part[key]
        return complete

    def _take_call(self) -> list[dict[str, Any]]:
        """The call that is complete now; none where its arguments were cut off, and so are no JSON object."""
        call, self._call = self._call, None
        if call is None:
            return []
        if INPUT in call:  # a custom tool is a function of one text here
            arguments: Any = {INPUT: call[INPUT]}
        else:
            try:
                arguments = orjson.loads(call["arguments"] or "{}")
            except orjson.JSONDecodeError:
                return []
        if not isinstance(arguments, dict):
            return []
        function = {"index": call["index"], "name": call["name"], "arguments": arguments}
        return [{"id": call["id"], "function": function}]

    def _line(self, fields: dict[str, Any], **more: Any) -> bytes:
        return orjson.dumps(self._object(fields, **more)) + NDJSON.after

    def _object(self, fields: dict[str, Any], **more: Any) -> dict[str, Any]:
        shown = {"message": {"role": "assistant", "content": "", **fields}} if self._is_chat else _of_generate(fields)
        return {"model": self._model, "created_at": timestamp(), **shown, **more}

    def _ending(self, reason: FinishReason | None) -> dict[str, Any]:
        """The last fields: why the answer has ended, counts, and durations in nanoseconds."""
        usage, timings = self._generation.usage, self._generation.timings
        ending: dict[str, Any] = {
            "done_reason": _REASONS.get(reason or FinishReason.STOP, str(reason)),
            "total_duration": nanoseconds(time.perf_counter() - self._began),
            "load_duration": 0,
            "prompt_eval_count": usage.num_prompt_tokens,
            "eval_count": usage.num_completion_tokens,
        }
        if timings is not None:
            prompt = timings.time_to_first_token - timings.queue_time
            ending["total_duration"] = nanoseconds(timings.queue_time + timings.generation_time)
            ending["prompt_eval_duration"] = nanoseconds(prompt)
            ending["eval_duration"] = nanoseconds(timings.generation_time - prompt)
        return ending


def _calls(calls: list[dict[str, Any]]) -> dict[str, Any]:
    return {"tool_calls": calls} if calls else {}


def _of_generate(fields: dict[str, Any]) -> dict[str, Any]:
    shown = {"response": fields.get("content", "")}
    return shown | ({"thinking": fields["thinking"]} if "thinking" in fields else {})


def timestamp() -> str:
    """Now, as Ollama writes times (RFC 3339)."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def nanoseconds(seconds: float) -> int:
    return max(0, round(seconds * _NANOSECONDS))
