"""Prompts and answers as span attributes of the semantic conventions, where the operator switches them on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from server.generation.generation_request import GenerationRequest
from server.generation.output_sequence import Delta
from server.generation.prompt_sources import Conversation, TextPrompt

MAX_CHARS = 64 << 10  # of a request's prompts, and of all its answers; the rest is left out


def input_messages(request: GenerationRequest) -> str:
    """Encodes the text prompts and messages as JSON, up to MAX_CHARS; prompts of token ids are left out."""
    messages: list[dict[str, Any]] = []
    room = MAX_CHARS
    for prompt in request.prompts:
        match prompt:
            case Conversation():
                given = [(str(message.get("role", "user")), _text_of(message)) for message in prompt.messages]
            case TextPrompt():
                given = [("user", prompt.text)]
            case _:
                given = []
        for role, text in given:
            if not room:
                break
            messages.append(_message(role, text[:room]))
            room = max(0, room - len(text))
    return orjson.dumps(messages).decode()


def stop_sequences(request: GenerationRequest) -> list[str]:
    """The stop strings; those beyond MAX_CHARS are left out."""
    room, kept = MAX_CHARS, []
    for text in request.stops:
        room -= len(text)
        if room < 0:
            break
        kept.append(_clean(text))
    return kept


class OutputMessages:
    """Collects the texts of the answers, up to MAX_CHARS."""

    def __init__(self) -> None:
        self._texts: dict[int, list[str]] = {}
        self._room = MAX_CHARS

    def add(self, deltas: Sequence[Delta]) -> None:
        for delta in deltas:
            text = delta.text[: self._room]
            if text:
                self._texts.setdefault(delta.index, []).append(text)
                self._room -= len(text)

    def to_json(self, finish_reasons: Sequence[str | None]) -> str:
        """One message for each answer, with its finish_reason, None of one that has not ended."""
        messages = []
        for at in sorted(self._texts):
            reason = finish_reasons[at] if at < len(finish_reasons) else None
            # The conventions want a reason of every answer; one whose client has left ended with an error.
            message = _message("assistant", "".join(self._texts[at]))
            messages.append({**message, "finish_reason": "error" if reason is None else str(reason)})
        return orjson.dumps(messages).decode()


def _message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": _clean(text)}]}


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()  # halves of surrogate pairs are no JSON


def _text_of(message: Any) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(str(part.get("text") or "") for part in parts if isinstance(part, dict))
