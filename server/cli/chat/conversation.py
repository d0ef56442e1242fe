"""The messages of a chat, and the parameters of its requests."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import orjson

# Fields of a request that the chat fills in itself, or whose answers it could not show.
RESERVED = frozenset({"messages", "model", "stream", "stream_options", "n", "best_of", "tools", "tool_choice"})
# What may follow a message of a conversation. An answer that was stopped ends with the results of its calls.
_NEXT = {
    "": ("user",), "user": ("assistant", "calls"), "calls": ("tool",), "tool": ("tool", "assistant", "calls", "user"),
    "assistant": ("user",),
}  # fmt: skip
_ENDS = ("", "assistant", "tool")

Messages = list[dict[str, Any]]
Content: TypeAlias = str | list[dict[str, Any]]  # of a question: a text, or pictures and a text as parts


class ConversationError(ValueError):
    """A command of the chat failed; the message says why, for the user."""


class Conversation:
    """A system message and turns, each of a question, calls of tools with their results, and an answer.

    A saved conversation is a body for `POST /v1/chat/completions`, so that other programs can continue it.
    """

    def __init__(self, model: str | None = None, system: str | None = None, **parameters: Any) -> None:
        self.model = model
        self.system = system
        self.parameters = parameters
        self._turns: list[Messages] = []
        self._last_question: Content | None = None
        self._pictures: list[dict[str, Any]] = []  # that go with the next question

    @property
    def turns(self) -> list[tuple[str, str]]:
        """The question and the answer of each turn; the answer is empty where it was stopped after calls of tools."""
        return [
            (_text_of(turn[0]["content"]), turn[-1]["content"] if turn[-1]["role"] == "assistant" else "")
            for turn in self._turns
        ]

    def attach(self, picture: dict[str, Any]) -> int:
        """Adds a part to the next question; returns how many it has."""
        self._pictures.append(picture)
        return len(self._pictures)

    def detach(self) -> None:
        """Removes the pictures of the next question."""
        self._pictures.clear()

    def body(self, question: str | None = None, calls: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        """The body of a request with all turns, and after them `question`, and `calls` with their results."""
        messages: Messages = [] if self.system is None else [{"role": "system", "content": self.system}]
        for turn in self._turns:
            messages += turn
        if question is not None:
            messages.append({"role": "user", "content": self._content(question)})
        messages += calls
        model = {} if self.model is None else {"model": self.model}
        return {**model, **self.parameters, "messages": messages}

    def begin(self, question: str, calls: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        """The body of the request for `question`, which `retry` may repeat; `calls` have been made for it."""
        self._last_question = self._content(question)
        return self.body(question, calls)

    def end(self, question: str, answer: str, calls: Sequence[dict[str, Any]] = ()) -> None:
        """Adds a turn, unless nothing follows the question, for example because of an error."""
        turn = [{"role": "user", "content": self._content(question)}, *calls]
        self.detach()
        if answer:
            turn.append({"role": "assistant", "content": answer})
        if len(turn) > 1:
            self._turns.append(turn)

    def undo(self) -> str:
        """Removes the last turn and returns its question; raises ConversationError."""
        return _text_of(self._pop())

    def retry(self) -> str:
        """Returns the last question, to be sent again, and removes its turn; raises ConversationError."""
        question = self._last_question
        if question is None:
            question = self._pop()
        elif self._turns and self._turns[-1][0]["content"] == question:
            self._turns.pop()
        self._pictures = [] if isinstance(question, str) else [part for part in question if part["type"] != "text"]
        return _text_of(question)

    def clear(self) -> None:
        """Removes all turns; the system message and the parameters stay."""
        self._turns.clear()
        self._last_question = None
        self.detach()

    def set_parameter(self, name: str, text: str) -> None:
        """Sets a parameter to `text` as JSON, or as it is, or removes it; raises ConversationError for some."""
        if name in RESERVED:
            raise ConversationError(f"{name} cannot be set; the chat fills it in itself")
        if not text:
            self.parameters.pop(name, None)
            return
        try:
            self.parameters[name] = orjson.loads(text)
        except orjson.JSONDecodeError:
            self.parameters[name] = text

    def save(self, path: Path) -> None:
        """Writes the conversation to a file; raises ConversationError."""
        try:
            path.write_bytes(orjson.dumps(self.body(), option=orjson.OPT_INDENT_2) + b"\n")
        except (OSError, ValueError) as error:
            raise ConversationError(f"{path} cannot be written: {error}") from error

    def load(self, path: Path) -> None:
        """Replaces messages and parameters by those of a saved conversation, or raises ConversationError."""
        try:
            body = orjson.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise ConversationError(f"{path} cannot be read: {error}") from error
        messages = body.get("messages") if isinstance(body, dict) else None
        if not isinstance(messages, list):
            raise ConversationError(f"{path} is not a conversation: it has no list `messages`")
        read = [_message(path, message) for message in messages]
        system = read.pop(0)["content"] if read and read[0]["role"] == "system" else None
        turns = _turns_of(path, read)
        model = body.get("model")
        self.model, self.system = model if isinstance(model, str) else None, system
        self.parameters = {name: value for name, value in body.items() if name not in RESERVED}
        self._turns = turns
        self._last_question = None
        self.detach()

    def _content(self, question: str) -> Content:
        """The content of the next question."""
        return [*self._pictures, {"type": "text", "text": question}] if self._pictures else question

    def _pop(self) -> Content:
        if not self._turns:
            raise ConversationError("there is no question yet")
        self._last_question = None
        question: Content = self._turns.pop()[0]["content"]
        return question


def _text_of(content: Content) -> str:
    """A question without its pictures."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part["type"] == "text")


def _is_part(part: Any) -> bool:
    match part:
        case {"type": "text", "text": str()} | {"type": "image_url", "image_url": {"url": str()}}:
            return True
    return False


def _message(path: Path, message: Any) -> dict[str, Any]:
    match message:
        case {"role": "assistant", "tool_calls": [*calls], "content": str() | None as content}:
            return {"role": "assistant", "content": content, "tool_calls": calls}
        case {"role": "tool", "tool_call_id": str(call_id), "content": str(content)}:
            return {"role": "tool", "tool_call_id": call_id, "content": content}
        case {"role": str(role), "content": str(content)}:
            return {"role": role, "content": content}
        case {"role": "user", "content": [_, *_] as parts} if all(map(_is_part, parts)):
            return {"role": "user", "content": parts}
        case _:
            raise ConversationError(
                f"{path}: a message must have a `role`, and a text or, of a user, texts and pictures as `content`"
            )


def _turns_of(path: Path, messages: Messages) -> list[Messages]:
    turns: list[Messages] = []
    before = ""
    for message in messages:
        role = "calls" if "tool_calls" in message else message["role"]
        if role not in _NEXT[before]:
            break
        if role == "user":
            turns.append([])
        turns[-1].append(message)
        before = role
    else:
        if before in _ENDS:
            return turns
    raise ConversationError(f"{path}: after a system message, user and assistant must take turns")
