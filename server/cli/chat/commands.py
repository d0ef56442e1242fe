"""The commands of the chat, which begin with a slash."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import orjson

from server.cli.chat.conversation import Conversation, ConversationError

HELP = """\
/help              shows this
/system [TEXT]     sets the system message; without a text, removes it
/set [NAME VALUE]  sets a parameter such as temperature; without a value, takes it back; without a name, shows all
/model [NAME]      asks another model of the server; without a name, shows which
/retry             asks the last question again
/undo              forgets the last question and its answer
/clear             forgets all of them
/save FILE         writes the conversation, as a body for /v1/chat/completions
/load FILE         goes on from a saved conversation
/quit              ends the chat, as Ctrl-D does

Ctrl-C stops an answer. A message of several lines stands between two lines of \"\"\"."""


class Outcome(NamedTuple):
    """What follows from a command: a text to show, a question to ask, or the end."""

    text: str = ""
    question: str | None = None
    is_end: bool = False


def run_command(line: str, conversation: Conversation) -> Outcome:
    """Follows the command in `line`, which begins with a slash.

    Raises:
        ConversationError: it cannot be followed.
    """
    name, _, argument = line.partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        raise ConversationError(f"there is no command {name}; /help lists them")
    return command(conversation, argument.strip())


def _system(conversation: Conversation, text: str) -> Outcome:
    conversation.system = text or None
    return Outcome("the system message is set" if text else "there is no system message now")


def _set(conversation: Conversation, argument: str) -> Outcome:
    name, _, value = argument.partition(" ")
    if name:
        conversation.set_parameter(name, value.strip())
    set_now = [f"{name} = {orjson.dumps(value).decode()}" for name, value in conversation.parameters.items()]
    return Outcome("\n".join(set_now) or "all parameters have their defaults")


def _model(conversation: Conversation, name: str) -> Outcome:
    conversation.model = name or conversation.model
    return Outcome(f"the model is {conversation.model or 'the first of the server'}")


def _undo(conversation: Conversation, _argument: str) -> Outcome:
    question = conversation.undo()
    return Outcome(f"forgotten: {question.splitlines()[0][:60]}")


def _clear(conversation: Conversation, _argument: str) -> Outcome:
    conversation.clear()
    return Outcome("everything that was said is forgotten")


def _save(conversation: Conversation, argument: str) -> Outcome:
    path = _path(argument, "/save")
    conversation.save(path)
    return Outcome(f"saved in {path}")


def _load(conversation: Conversation, argument: str) -> Outcome:
    path = _path(argument, "/load")
    conversation.load(path)
    return Outcome(f"{len(conversation.turns)} questions and answers are loaded from {path}")


def _path(argument: str, command: str) -> Path:
    if not argument:
        raise ConversationError(f"{command} needs the name of a file")
    return Path(argument).expanduser()


COMMANDS: dict[str, Callable[[Conversation, str], Outcome]] = {
    "/help": lambda _conversation, _argument: Outcome(HELP),
    "/system": _system,
    "/set": _set,
    "/model": _model,
    "/retry": lambda conversation, _argument: Outcome(question=conversation.retry()),
    "/undo": _undo,
    "/clear": _clear,
    "/save": _save,
    "/load": _load,
    "/quit": lambda _conversation, _argument: Outcome(is_end=True),
}
