"""The loop of `eagre chat`: reads a line, runs it as a command or sends it as a question, writes the answer."""

from server.cli.chat.answers import Answers
from server.cli.chat.commands import Outcome, run_command
from server.cli.chat.conversation import Conversation, ConversationError
from server.cli.chat.terminal import Terminal
from server.cli.client.errors import NoAnswer
from server.cli.client.server_client import Piece


class Chat:
    def __init__(self, conversation: Conversation, answers: Answers, screen: Terminal) -> None:
        self._conversation = conversation
        self._answers = answers
        self._screen = screen

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
        return run_command(line.strip(), self._conversation) if line.startswith("/") else Outcome(question=line)

    def _ask(self, question: str) -> bool:
        """Writes the answer and adds it to the conversation, even if it was stopped or failed halfway."""
        texts: list[str] = []

        def write(piece: Piece) -> None:
            if not piece.is_reasoning:
                texts.append(piece.text)
            self._screen.write(piece)

        failure = None
        try:
            self._answers.answer(self._conversation.begin(question), write)
        except NoAnswer as error:
            failure = str(error)
        except KeyboardInterrupt:
            if not self._screen.is_interactive:
                self._screen.end_answer()
                raise
            failure = "stopped"
        finally:
            self._conversation.end(question, "".join(texts))
        self._screen.end_answer()
        if failure is not None:
            self._screen.tell(f"eagre: {failure}")
        return failure is None
