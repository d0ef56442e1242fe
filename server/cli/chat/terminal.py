"""How the chat reads and writes: a terminal with line editing and styles, or plain lines."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from types import ModuleType

from server.cli.chat.commands import COMMANDS
from server.cli.chat.markdown import MarkdownStream
from server.cli.client.plain_text import without_controls
from server.cli.client.server_client import Piece

_MULTILINE = '"""'
_HISTORY_LENGTH = 1000  # lines
_DIM, _RESET = "\x1b[2m", "\x1b[0m"


class Terminal:
    """Reads questions and writes answers.

    Without a terminal on standard input nothing but answers is written to standard output. Without one on standard
    output, or with NO_COLOR (no-color.org), answers are written as they come.
    """

    def __init__(self, *, is_plain: bool = False) -> None:
        self.is_interactive = sys.stdin.isatty() and sys.stdout.isatty()
        self._has_screen = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        self._has_styles = self._has_screen and not is_plain and not os.environ.get("NO_COLOR")
        self._readline = _open_history() if self.is_interactive else None
        self._markdown = MarkdownStream()
        self._is_reasoning = False

    def read(self) -> str | None:
        '''The next question or command, None at the end of the input; lines between two lines of """ are one.'''
        line = self._read_line(">>> ")
        if line is None or line.strip() != _MULTILINE:
            return line
        lines = []
        while (line := self._read_line("... ")) is not None and line.strip() != _MULTILINE:
            lines.append(line)
        return "\n".join(lines)

    def write(self, piece: Piece) -> None:
        """Writes a piece of an answer: reasoning dimmed, and none of it without styles."""
        if piece.is_reasoning:
            if self._has_styles:
                self._put(("" if self._is_reasoning else _DIM) + without_controls(piece.text))
                self._is_reasoning = True
            return
        self._end_reasoning()
        if self._has_styles:
            self._put(self._markdown.feed(piece.text))
        else:
            self._put(without_controls(piece.text) if self._has_screen else piece.text)

    def end_answer(self) -> None:
        """Ends the styles and the line of an answer."""
        self._end_reasoning()
        self._put(self._markdown.finish() if self._has_styles else "")
        self._put("\n")
        self._markdown = MarkdownStream()

    def tell(self, text: str) -> None:
        """Writes what is no answer: to standard error, where standard output is no terminal for people."""
        print(text, file=sys.stdout if self.is_interactive else sys.stderr, flush=True)

    def close(self) -> None:
        """Keeps the lines that were entered, for the next chat."""
        if self._readline is not None:
            with contextlib.suppress(OSError):
                path = _history_path()
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                path.touch(mode=0o600)
                self._readline.set_history_length(_HISTORY_LENGTH)
                self._readline.write_history_file(path)

    def _read_line(self, prompt: str) -> str | None:
        if not self.is_interactive:
            line = sys.stdin.readline()
            return line.removesuffix("\n") if line else None
        try:
            return input(prompt)
        except EOFError:
            return None

    def _end_reasoning(self) -> None:
        if self._is_reasoning:
            self._is_reasoning = False
            self._put(f"{_RESET}\n\n")

    def _put(self, text: str) -> None:
        print(text, end="", flush=True)


def _history_path() -> Path:
    """In the folder for what programs remember of a user (XDG Base Directory Specification)."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "eagre" / "chat_history"


def _open_history() -> ModuleType | None:
    """Python's line editing, with the lines of earlier chats; None where Python was built without it."""
    try:
        import readline
    except ImportError:
        return None
    with contextlib.suppress(OSError, RuntimeError):
        readline.read_history_file(_history_path())
    names = sorted(COMMANDS)

    def complete(text: str, state: int) -> str | None:
        found = [name for name in names if text.startswith("/") and name.startswith(text)]
        return found[state] if state < len(found) else None

    readline.set_completer_delims(" ")
    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")
    return readline
