"""The calls of tools in the chat: each is shown, and runs where the user allows it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from server.cli.client.server_client import Call
from server.startup.plain_text import one_line, without_controls

if TYPE_CHECKING:  # a chat without tools needs none of it
    from server.cli.tools.tool import Result
    from server.cli.tools.toolbox import Owner

MAX_ROUNDS = 8  # of calls of one answer that run without a question
MAX_LINES = 8  # of a result that are shown
MAX_WIDTH = 160  # characters of each of them

_QUESTION = "run it? [y]es, [a]lways in this conversation, [n]o: "
_WORDS = {"y": "y", "yes": "y", "a": "a", "always": "a", "n": "n", "no": "n"}
_REFUSED = "The user has not allowed this call."
_STOPPED = "The user has stopped this call."


class Box(Protocol):
    """What runs calls: a `Toolbox`, or a fake of it."""

    def definitions(self) -> list[dict[str, Any]]: ...

    def owner(self, name: str) -> Owner | None: ...

    def run(self, call: Call) -> Result: ...


class Screen(Protocol):
    """What shows calls and asks: a `Terminal`, or a fake of it."""

    def tell(self, text: str) -> None: ...

    def ask(self, prompt: str) -> str | None:
        """The user's line, None at the end of the input; raises KeyboardInterrupt."""


class Stopped(Exception):
    """The user has stopped a call; `messages` are the results of all calls of the answer."""

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        super().__init__()
        self.messages = messages


class CallsOfAnswer:
    """The calls of an answer, from their pieces."""

    def __init__(self) -> None:
        self._calls: dict[int, Call] = {}

    def feed(self, piece: Call) -> None:
        index = piece.index
        known = self._calls.get(index, Call("", "", "", index))
        self._calls[index] = Call(
            known.id or piece.id, known.name + piece.name, known.arguments + piece.arguments, index
        )

    def whole(self) -> list[Call]:
        return [
            replace(call, id=call.id or f"call_{call.index}") for _, call in sorted(self._calls.items()) if call.name
        ]


class ToolCalls:
    """Asks for calls and runs them; it remembers which tools are always allowed, and how much ran since a question."""

    def __init__(self, box: Box, screen: Screen) -> None:
        self._box = box
        self._screen = screen
        self._allowed: set[str] = set()
        self._num_rounds = 0  # that ran without a question

    def definitions(self) -> list[dict[str, Any]]:
        return self._box.definitions()

    def begin(self) -> None:
        """A new question of the user begins."""
        self._num_rounds = 0

    def forget(self) -> None:
        """A new conversation begins, for which nothing is allowed yet."""
        self._allowed.clear()

    def run(self, calls: Sequence[Call]) -> list[dict[str, Any]]:
        """Runs the calls of an answer one after the other, and returns the messages of their results.

        Raises:
            Stopped: Ctrl-C has stopped one; those after it do not run.
        """
        self._num_rounds += 1
        messages: list[dict[str, Any]] = []
        for number, call in enumerate(calls):
            try:
                text = self._run(call)
            except KeyboardInterrupt:
                messages += [_message(left, _STOPPED) for left in calls[number:]]
                raise Stopped(messages) from None
            messages.append(_message(call, text))
        return messages

    def _run(self, call: Call) -> str:
        owner = self._box.owner(call.name)
        if owner is None:
            source = "there is no such tool"
        else:
            own_name = "" if owner.tool.name == call.name else f"{one_line(owner.tool.name)} "
            source = f"{own_name}of {one_line(owner.source.name)}"
        self._screen.tell(f"calls {one_line(call.name)} ({source})\n{_shown_arguments(call.arguments)}")
        if owner is not None and not self._may_run(call):
            return _REFUSED
        result = self._box.run(call)
        self._screen.tell(_shown_result(result))
        return result.text

    def _may_run(self, call: Call) -> bool:
        if call.name in self._allowed and self._num_rounds <= MAX_ROUNDS:
            return True
        choice = None
        while choice is None:
            line = self._screen.ask(_QUESTION)
            choice = "n" if line is None else _WORDS.get(line.strip().lower())
        self._num_rounds = 0
        if choice == "a":
            self._allowed.add(call.name)
        return choice != "n"


def message_of(text: str, calls: Sequence[Call]) -> dict[str, Any]:
    """The assistant's message with calls."""
    return {
        "role": "assistant",
        "content": text or None,
        "tool_calls": [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ],
    }


def _message(call: Call, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call.id, "content": text}


def _shown_arguments(text: str) -> str:
    """All of the arguments, indented, with escapes in the place of characters that a terminal does not show."""
    with contextlib.suppress(orjson.JSONDecodeError, TypeError):  # TypeError: nested too deeply to be written
        text = orjson.dumps(orjson.loads(text), option=orjson.OPT_INDENT_2).decode() if text.strip() else "{}"
    seen = "".join(char if char == without_controls(char) else f"\\u{ord(char):04x}" for char in text)
    return re.sub("^", "  ", seen, flags=re.MULTILINE)


def _shown_result(result: Result) -> str:
    """The first lines of a result, each with a bar before it, so that none looks like the chat's own."""
    lines = without_controls(result.text).split("\n")
    shown = [line if len(line) <= MAX_WIDTH else line[:MAX_WIDTH] + "…" for line in lines[:MAX_LINES]]
    if len(lines) > MAX_LINES:
        shown.append(f"… {len(lines) - MAX_LINES} lines more")
    if result.is_error:
        shown[0] = f"error: {shown[0]}"
    return "\n".join(f"  | {line}" for line in shown)
