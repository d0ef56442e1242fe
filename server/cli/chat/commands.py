"""The slash commands of the chat."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import orjson

from server.cli.chat.conversation import Conversation, ConversationError
from server.cli.chat.pictures import picture_part

IMAGE = "/image"
TAKE_PATHS = (IMAGE, "/save", "/load")  # commands with the name of a file
HELP = """\
/help              shows this
/system [TEXT]     sets the system message; without a text, removes it
/set [NAME VALUE]  sets a parameter such as temperature; without a value, removes it; without a name, shows all
/image [PATH]      adds a picture to the next question, also several; without a path, removes them
/model [NAME]      changes to another model of the server; without a name, shows the current one
/retry             sends the last question again
/undo              removes the last question and its answer
/clear             removes all questions and answers
/save FILE         saves the conversation as a body for /v1/chat/completions
/load FILE         continues a saved conversation
/quit              ends the chat, as Ctrl-D does

Ctrl-C stops an answer or a call of a tool. Put a line of \"\"\" before and after a message of several lines."""


class Outcome(NamedTuple):
    """The result of a line: a text to show, a question to send, or the end of the chat."""

    text: str = ""
    question: str | None = None
    is_end: bool = False


def run_command(line: str, conversation: Conversation) -> Outcome:
    """Runs the command in `line`, which begins with a slash; raises ConversationError."""
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


def _image(conversation: Conversation, argument: str) -> Outcome:
    if not argument:
        conversation.detach()
        return Outcome("no picture goes with the next question")
    path = _path(argument, IMAGE)
    count = conversation.attach(picture_part(path))
    return Outcome(f"{path.name} goes with the next question" + (f", with {count - 1} more" if count > 1 else ""))


def _undo(conversation: Conversation, _argument: str) -> Outcome:
    question = conversation.undo()
    return Outcome(f"removed: {question.partition(chr(10))[0][:60]}")


def _clear(conversation: Conversation, _argument: str) -> Outcome:
    conversation.clear()
    return Outcome("all questions and answers are removed")


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
    IMAGE: _image,
    "/model": _model,
    "/retry": lambda conversation, _argument: Outcome(question=conversation.retry()),
    "/undo": _undo,
    "/clear": _clear,
    "/save": _save,
    "/load": _load,
    "/quit": lambda _conversation, _argument: Outcome(is_end=True),
}
