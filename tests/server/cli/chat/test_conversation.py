"""The conversation and its slash commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from server.cli.chat.commands import COMMANDS, HELP, run_command
from server.cli.chat.conversation import Conversation, ConversationError

USER, ASSISTANT = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
SYSTEM = {"role": "system", "content": "Be brief."}


def talked() -> Conversation:
    conversation = Conversation("tide", "Be brief.", temperature=0.5)
    conversation.begin("q")
    conversation.end("q", "a")
    return conversation


def test_a_request_has_the_system_message_all_turns_and_the_question() -> None:
    assert talked().begin("next") == {
        "model": "tide",
        "temperature": 0.5,
        "messages": [SYSTEM, USER, ASSISTANT, {"role": "user", "content": "next"}],
    }
    assert Conversation().begin("q") == {"messages": [USER]}


def test_a_question_without_an_answer_is_no_turn_but_can_be_asked_again() -> None:
    conversation = talked()
    conversation.begin("lost")
    conversation.end("lost", "")
    assert conversation.turns == [("q", "a")]
    assert run_command("/retry", conversation).question == "lost"
    assert conversation.turns == [("q", "a")]


def test_retry_forgets_the_answer_that_it_replaces() -> None:
    conversation = talked()
    assert run_command("/retry", conversation).question == "q"
    assert conversation.turns == []


def test_undo_forgets_one_turn() -> None:
    conversation = talked()
    assert "q" in run_command("/undo", conversation).text
    assert conversation.body()["messages"] == [SYSTEM]
    with pytest.raises(ConversationError, match="there is no question yet"):
        run_command("/undo", conversation)
    with pytest.raises(ConversationError, match="there is no question yet"):
        run_command("/retry", conversation)


def test_clear_keeps_the_system_message() -> None:
    conversation = talked()
    run_command("/clear", conversation)
    assert conversation.body()["messages"] == [SYSTEM]


@pytest.mark.parametrize(
    ("command", "parameters"),
    [
        ("/set top_k 20", {"temperature": 0.5, "top_k": 20}),
        ('/set stop ["a", "b"]', {"temperature": 0.5, "stop": ["a", "b"]}),
        ("/set stop The end", {"temperature": 0.5, "stop": "The end"}),
        ("/set temperature", {}),
        ("/set", {"temperature": 0.5}),
    ],
)
def test_set(command: str, parameters: dict[str, Any]) -> None:
    conversation = talked()
    shown = run_command(command, conversation).text
    assert conversation.parameters == parameters
    assert all(name in shown for name in parameters)


@pytest.mark.parametrize("name", ["messages", "n", "stream", "model"])
def test_what_the_chat_fills_in_cannot_be_set(name: str) -> None:
    with pytest.raises(ConversationError, match=f"{name} cannot be set"):
        run_command(f"/set {name} 2", talked())


def test_system_and_model() -> None:
    conversation = talked()
    run_command("/system", conversation)
    assert "other" in run_command("/model other", conversation).text
    assert conversation.body() == {"model": "other", "temperature": 0.5, "messages": [USER, ASSISTANT]}
    assert "other" in run_command("/model", conversation).text


def test_what_is_saved_is_a_request_and_can_be_loaded(tmp_path: Path) -> None:
    conversation = talked()
    path = tmp_path / "my talk.json"
    run_command(f"/save {path}", conversation)
    assert orjson.loads(path.read_bytes()) == conversation.body()
    other = Conversation()
    run_command(f"/load {path}", other)
    assert other.body() == conversation.body()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be read"),
        (b"{", "cannot be read"),
        (b"[]", "no list `messages`"),
        (b'{"messages": [{"role": "user"}]}', "a text or, of a user"),
        (b'{"messages": [{"role": "user", "content": "q"}]}', "must take turns"),
        (b'{"messages": [{"role": "assistant", "content": "q"}, {"role": "user", "content": "q"}]}', "take turns"),
    ],
)
def test_a_wrong_file_is_named_and_changes_nothing(tmp_path: Path, content: bytes | None, reason: str) -> None:
    path = tmp_path / "talk.json"
    if content is not None:
        path.write_bytes(content)
    conversation = talked()
    with pytest.raises(ConversationError, match=reason):
        run_command(f"/load {path}", conversation)
    assert conversation.turns == [("q", "a")]


@pytest.mark.parametrize(
    ("line", "reason"),
    [("/dance", "no command /dance"), ("/save", "needs the name"), ("/load", "needs the name"), ("/save /", "written")],
)
def test_a_wrong_command_is_refused(line: str, reason: str) -> None:
    with pytest.raises(ConversationError, match=reason):
        run_command(line, talked())


def test_help_and_quit() -> None:
    assert run_command("/help", talked()).text == HELP
    assert all(name in HELP for name in COMMANDS)
    assert run_command("/quit", talked()).is_end
