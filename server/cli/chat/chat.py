"""The loop of `eagre chat`: reads a line, runs it as a command or sends it as a question, writes the answer."""

from typing import Any

from server.cli.chat.answers import Answers
from server.cli.chat.commands import IMAGE, Outcome, run_command
from server.cli.chat.conversation import Conversation, ConversationError
from server.cli.chat.terminal import Terminal
from server.cli.chat.tool_calls import CallsOfAnswer, Stopped, ToolCalls, message_of
from server.cli.client.errors import NoAnswer
from server.cli.client.server_client import Call, Piece

_NEW_CONVERSATION = ("/clear", "/load")


class Chat:
    def __init__(
        self, conversation: Conversation, answers: Answers, screen: Terminal, tools: ToolCalls | None = None
    ) -> None:
        self._conversation = conversation
        self._answers = answers
        self._screen = screen
        self._tools = tools

    def run(self) -> bool:
        """Chats until the input ends or `/quit`; False if something failed in a chat that is not interactive."""
        screen, is_good = self._screen, True
        while True:
            try:
                line = screen.read()
                if line is None:
                    return is_good
                outcome = self._parse(line)
            except KeyboardInterrupt:
                if not screen.is_interactive:
                    raise
                screen.tell("\n(/quit or Ctrl-D ends the chat)")
                continue
            except ConversationError as error:
                screen.tell(f"eagre: {error}")
                is_good = screen.is_interactive
                continue
            if outcome.text:
                screen.tell(outcome.text)
            if outcome.is_end:
                return is_good
            if outcome.question is not None and not self._ask(outcome.question):
                is_good = screen.is_interactive

    def _parse(self, line: str) -> Outcome:
        if not line.strip():
            return Outcome()
        if not line.startswith("/"):
            return Outcome(question=line)
        name, *argument = line.split(maxsplit=1)
        if name == IMAGE and argument and not self._answers.sees(self._conversation.model):
            raise ConversationError(
                f"{self._conversation.model or self._answers.name} reads text alone; {IMAGE} needs a model that sees"
            )
        outcome = run_command(line.strip(), self._conversation)
        if self._tools is not None and name in _NEW_CONVERSATION:
            self._tools.forget()
        return outcome

    def _ask(self, question: str) -> bool:
        """Writes the answer and adds it to the conversation, even if it was stopped or failed halfway."""
        texts: list[str] = []
        made: list[dict[str, Any]] = []  # calls with their results
        failure = None
        if self._tools is not None:
            self._tools.begin()
        try:
            while calls := self._answer(question, made, texts):
                assert self._tools is not None
                self._screen.end_answer()
                answer = message_of("".join(texts), calls)
                texts.clear()
                try:
                    made += [answer, *self._tools.run(calls)]
                except Stopped as stopped:
                    made += [answer, *stopped.messages]
                    raise KeyboardInterrupt from None
        except NoAnswer as error:
            failure = str(error)
        except KeyboardInterrupt:
            if not self._screen.is_interactive:
                self._screen.end_answer()
                raise
            failure = "stopped"
        finally:
            self._conversation.end(question, "".join(texts), made)
        self._screen.end_answer()
        if failure is not None:
            self._screen.tell(f"eagre: {failure}")
        return failure is None

    def _answer(self, question: str, made: list[dict[str, Any]], texts: list[str]) -> list[Call]:
        """Writes one answer of the model, adds its text to `texts`, and returns its calls of tools."""
        calls = CallsOfAnswer()

        def write(piece: Piece) -> None:
            if piece.call is not None:
                calls.feed(piece.call)
                return
            if not piece.is_reasoning:
                texts.append(piece.text)
            self._screen.write(piece)

        tools = [] if self._tools is None else self._tools.definitions()
        body = self._conversation.begin(question, made)
        self._answers.answer({**body, "tools": tools} if tools else body, write)
        return calls.whole() if tools else []
