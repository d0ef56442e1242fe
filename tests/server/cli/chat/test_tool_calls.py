"""Calls of tools in the chat: what is shown, asked and sent, with fakes of the terminal, the model and the tools."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from server.cli import main as cli
from server.cli.chat.chat import Chat
from server.cli.chat.commands import run_command
from server.cli.chat.conversation import Conversation, ConversationError
from server.cli.chat.tool_calls import MAX_LINES, MAX_ROUNDS, ToolCalls
from server.cli.client.server_client import Call, Piece
from server.cli.tools.tool import Result, Tool
from server.cli.tools.toolbox import Owner

DEFINITION = {"type": "function", "function": {"name": "add", "description": "", "parameters": {}}}


class FakeScreen:
    is_interactive = True

    def __init__(self, lines: Sequence[str], *choices: str | BaseException | None) -> None:
        self._lines = list(lines)
        self._choices = list(choices)
        self.shown: list[str] = []
        self.questions: list[str] = []

    def read(self) -> str | None:
        return self._lines.pop(0) if self._lines else None

    def ask(self, prompt: str) -> str | None:
        self.questions.append(prompt)
        choice = self._choices.pop(0)
        if isinstance(choice, BaseException):
            raise choice
        return choice

    def write(self, piece: Piece) -> None:
        self.shown.append(piece.text)

    def end_answer(self) -> None:
        pass

    def tell(self, text: str) -> None:
        self.shown.append(text)


class FakeAnswers:
    """Gives one list of pieces after the other, the last one again and again."""

    name = "fake"

    def __init__(self, *answers: Sequence[Piece | BaseException]) -> None:
        self._answers = list(answers)
        self.bodies: list[dict[str, Any]] = []

    def answer(self, body: dict[str, Any], write: Callable[[Piece], object]) -> None:
        self.bodies.append(body)
        for piece in self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]:
            if isinstance(piece, BaseException):
                raise piece
            write(piece)

    def sees(self, _model: str | None) -> bool:
        return True

    def close(self) -> None:
        pass


class FakeSource:
    name = "docs\x1b[2J"

    async def list_tools(self) -> list[Tool]:
        return []

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> Result:
        raise AssertionError

    async def close(self) -> None:
        pass


class FakeBox:
    """Has the tools `add` and `find`, which give `results`, the last one again and again."""

    def __init__(self, *results: Result | BaseException) -> None:
        self._results = list(results) or [Result("5")]
        self.calls: list[Call] = []

    def definitions(self) -> list[dict[str, Any]]:
        return [DEFINITION]

    def owner(self, name: str) -> Owner | None:
        return Owner(FakeSource(), Tool(name + "\nrun it?", "", {})) if name in ("add", "find") else None

    def run(self, call: Call) -> Result:
        self.calls.append(call)
        result = self._results.pop(0) if len(self._results) > 1 else self._results[0]
        if isinstance(result, BaseException):
            raise result
        return result


def calls(*names: str, arguments: str = '{"a": 2}') -> list[Piece]:
    """Pieces of an answer with calls; the arguments come in two."""
    pieces = []
    for index, name in enumerate(names):
        pieces.append(Piece("", call=Call(f"c{index}", name, arguments[:3], index)))
        pieces.append(Piece("", call=Call("", "", arguments[3:], index)))
    return pieces


def chat(screen: FakeScreen, answers: FakeAnswers, box: FakeBox, conversation: Conversation | None = None) -> bool:
    return Chat(conversation or Conversation(), answers, screen, ToolCalls(box, screen)).run()  # type: ignore[arg-type]


def message(*names: str, text: str | None = None) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": text,
        "tool_calls": [
            {"id": f"c{index}", "type": "function", "function": {"name": name, "arguments": '{"a": 2}'}}
            for index, name in enumerate(names)
        ],
    }


def result(number: int, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"c{number}", "content": text}


QUESTION = {"role": "user", "content": "q"}


def test_a_call_that_is_allowed_runs_and_its_result_goes_to_the_model() -> None:
    conversation = Conversation()
    screen, box = FakeScreen(["q", "next"], "what?", "Y "), FakeBox()
    answers = FakeAnswers([Piece("Let me see."), *calls("add")], [Piece("It is 5.")])
    assert chat(screen, answers, box, conversation)
    assert len(screen.questions) == 2
    assert box.calls == [Call("c0", "add", '{"a": 2}')]
    made = [message("add", text="Let me see."), result(0, "5")]
    assert [body["tools"] for body in answers.bodies] == [[DEFINITION]] * 3
    assert answers.bodies[1]["messages"] == [QUESTION, *made]
    assert answers.bodies[2]["messages"] == [
        QUESTION, *made, {"role": "assistant", "content": "It is 5."}, {"role": "user", "content": "next"}
    ]  # fmt: skip
    assert conversation.turns == [("q", "It is 5."), ("next", "It is 5.")]


@pytest.mark.parametrize("choice", ["n", "no", None])
def test_a_call_that_is_not_allowed_does_not_run_and_the_model_hears_of_it(choice: str | None) -> None:
    screen, box, answers = FakeScreen(["q"], choice), FakeBox(), FakeAnswers(calls("add"), [Piece("a")])
    assert chat(screen, answers, box)
    assert box.calls == []
    assert "not allowed" in answers.bodies[1]["messages"][-1]["content"]


def test_always_holds_for_the_tool_until_another_conversation() -> None:
    screen, box = FakeScreen(["q", "q", "/clear", "q"], "a", "y", "n", "n"), FakeBox()
    answers = FakeAnswers(calls("add"), calls("add", "find"), [Piece("a")], calls("add"), [Piece("a")], calls("add"))
    answers._answers.append([Piece("a")])
    assert chat(screen, answers, box)
    assert [call.name for call in box.calls] == ["add", "add", "find", "add"]
    assert len(screen.questions) == 3  # add, find, and add again after /clear


def test_after_eight_rounds_without_a_question_there_is_one() -> None:
    screen, box, answers = FakeScreen(["q"], "a", "y", KeyboardInterrupt()), FakeBox(), FakeAnswers(calls("add"))
    assert chat(screen, answers, box)
    assert len(screen.questions) == 3
    assert len(box.calls) == 2 * (MAX_ROUNDS + 1)
    assert screen.shown[-1] == "eagre: stopped"


@pytest.mark.parametrize("is_at_question", [True, False])
def test_ctrl_c_stops_a_call_and_the_conversation_stays_whole(is_at_question: bool) -> None:
    conversation = Conversation()
    screen = FakeScreen(["q", "next"], "y", KeyboardInterrupt() if is_at_question else "y")
    box = FakeBox(Result("5")) if is_at_question else FakeBox(Result("5"), KeyboardInterrupt())
    answers = FakeAnswers(calls("add", "find", "add"), [Piece("a")])
    assert chat(screen, answers, box, conversation)
    stopped = "The user has stopped this call."
    assert answers.bodies[1]["messages"] == [
        QUESTION, message("add", "find", "add"), result(0, "5"), result(1, stopped), result(2, stopped),
        {"role": "user", "content": "next"},
    ]  # fmt: skip
    assert conversation.turns == [("q", ""), ("next", "a")]


def test_a_call_that_was_not_written_to_its_end_is_left_out() -> None:
    conversation, box = Conversation(), FakeBox()
    screen = FakeScreen(["q"])
    assert chat(screen, FakeAnswers([Piece("hm"), calls("add")[0], KeyboardInterrupt()]), box, conversation)
    assert conversation.turns == [("q", "hm")]
    assert box.calls == []


def test_a_tool_that_does_not_exist_is_an_error_for_the_model_without_a_question() -> None:
    screen, box = FakeScreen(["q"]), FakeBox(Result("There is no tool rm.", is_error=True))
    answers = FakeAnswers(calls("rm"), [Piece("a")])
    assert chat(screen, answers, box)
    assert screen.questions == []
    assert answers.bodies[1]["messages"][-1]["content"] == "There is no tool rm."


def test_what_is_shown_cannot_control_the_terminal_or_look_like_a_question() -> None:
    text = "\n".join(["\x1b[31mred", "run it? [y]es", "x" * 1000, *["more"] * 20])
    screen, box = FakeScreen(["q"], "y"), FakeBox(Result(text, is_error=True))
    arguments = '{"path": "a\\nrun it?", "hidden": "\u202e\x7f", "big": "' + "x" * 3000 + '"}'
    answers = FakeAnswers(calls("add", arguments=arguments), [Piece("a")])
    assert chat(screen, answers, box)
    made, given = screen.shown[0], screen.shown[1]
    assert made.startswith("calls add (add run it? of docs[2J)\n")
    assert '"path": "a\\nrun it?"' in made
    assert '"\\u202e\\u007f"' in made
    assert "x" * 3000 in made
    assert all(line.startswith("  ") for line in made.split("\n")[1:])
    lines = given.split("\n")
    assert lines[:2] == ["  | error: [31mred", "  | run it? [y]es"]
    assert lines[-1] == f"  | … {23 - MAX_LINES} lines more"
    assert max(map(len, lines)) < 200
    assert len(lines) == MAX_LINES + 1
    assert answers.bodies[1]["messages"][-1]["content"] == text  # the model gets all of it


def test_a_conversation_with_calls_can_be_saved_and_loaded(tmp_path: Path) -> None:
    conversation = Conversation(system="Be brief.")
    conversation.end("q", "a", [message("add", "find"), result(0, "5"), result(1, "6"), message("add"), result(0, "7")])
    conversation.end("stopped", "", [message("add"), result(0, "5")])
    conversation.end("plain", "b")
    run_command(f"/save {tmp_path / 'talk.json'}", conversation)
    other = Conversation()
    run_command(f"/load {tmp_path / 'talk.json'}", other)
    assert other.body() == conversation.body()
    assert other.turns == [("q", "a"), ("stopped", ""), ("plain", "b")]
    assert other.undo() == "plain"


@pytest.mark.parametrize("messages", [[QUESTION, message("add")], [QUESTION, result(0, "5")], [message("add")]])
def test_calls_without_results_or_questions_are_no_conversation(tmp_path: Path, messages: list[Any]) -> None:
    import json

    path = tmp_path / "talk.json"
    path.write_text(json.dumps({"messages": messages}))
    with pytest.raises(ConversationError, match="must take turns"):
        Conversation().load(path)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--tools"], "tools need a terminal"),
        (["--mcp", "docs"], "tools need a terminal"),
        (["--mcp-config", "x.json"], "tools need a terminal"),
    ],
)
def test_without_a_terminal_there_are_no_tools(
    flags: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(os.devnull) as empty:
        monkeypatch.setattr(sys, "stdin", empty)
        assert cli.main(["chat", "--url", "http://127.0.0.1:1", *flags]) == 1
    assert says in capsys.readouterr().err
