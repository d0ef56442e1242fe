"""The messages of a chat, and the parameters of its requests."""

from pathlib import Path
from typing import Any

import orjson

# Fields of a request that the chat fills in itself, or whose answers it could not show.
RESERVED = frozenset({"messages", "model", "stream", "stream_options", "n", "best_of", "tools", "tool_choice"})
_TURN = ("user", "assistant")


class ConversationError(ValueError):
    """A command of the chat failed; the message says why, for the user."""


class Conversation:
    """A system message and turns, each of a question and its answer.

    A saved conversation is a body for `POST /v1/chat/completions`, so that other programs can continue it.
    """

    def __init__(self, model: str | None = None, system: str | None = None, **parameters: Any) -> None:
        self.model = model
        self.system = system
        self.parameters = parameters
        self.turns: list[tuple[str, str]] = []
        self._last_question: str | None = None

    def body(self, question: str | None = None) -> dict[str, Any]:
        """The body of a request with all turns, and `question` after them."""
        messages = [] if self.system is None else [{"role": "system", "content": self.system}]
        for turn in self.turns:
            messages += [{"role": role, "content": text} for role, text in zip(_TURN, turn, strict=True)]
        if question is not None:
            messages.append({"role": "user", "content": question})
        model = {} if self.model is None else {"model": self.model}
        return {**model, **self.parameters, "messages": messages}

    def begin(self, question: str) -> dict[str, Any]:
        """The body of the request for `question`, which `retry` may repeat."""
        self._last_question = question
        return self.body(question)

    def end(self, question: str, answer: str) -> None:
        """Adds a turn, unless there is no answer, for example because of an error."""
        if answer:
            self.turns.append((question, answer))

    def undo(self) -> str:
        """Removes the last turn and returns its question; raises ConversationError."""
        if not self.turns:
            raise ConversationError("there is no question yet")
        self._last_question = None
        return self.turns.pop()[0]

    def retry(self) -> str:
        """Returns the last question, to be sent again, and removes its turn; raises ConversationError."""
        if self._last_question is None:
            return self.undo()
        if self.turns and self.turns[-1][0] == self._last_question:
            self.turns.pop()
        return self._last_question

    def clear(self) -> None:
        """Removes all turns; the system message and the parameters stay."""
        self.turns.clear()
        self._last_question = None

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
        turns = [_message(path, message) for message in messages]
        system = turns.pop(0)[1] if turns and turns[0][0] == "system" else None
        roles = [role for role, _ in turns]
        if roles != list(_TURN) * (len(turns) // 2):
            raise ConversationError(f"{path}: after a system message, user and assistant must take turns")
        model = body.get("model")
        self.model, self.system = model if isinstance(model, str) else None, system
        self.parameters = {name: value for name, value in body.items() if name not in RESERVED}
        texts = [text for _, text in turns]
        self.turns = list(zip(texts[::2], texts[1::2], strict=True))
        self._last_question = None


def _message(path: Path, message: Any) -> tuple[str, str]:
    match message:
        case {"role": str(role), "content": str(content)}:
            return role, content
        case _:
            raise ConversationError(f"{path}: a message must have a `role` and a text as `content`")
