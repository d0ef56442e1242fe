"""Input and output of the chat: a terminal with line editing and rendered markdown, or plain lines."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import sys
import termios
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from server.cli.chat.commands import COMMANDS, TAKE_PATHS
from server.cli.chat.word_wrap import WordWrap
from server.cli.client.server_client import Piece
from server.startup.plain_text import without_controls

if TYPE_CHECKING:  # rich is imported where styles are shown
    from server.cli.chat.markdown import MarkdownStream

_MULTILINE = '"""'
_HISTORY_LENGTH = 1000  # lines


class Terminal:
    """The chat's input and output: a terminal with line editing and rendered markdown, or plain lines.

    Without a terminal on standard input only answers are written. Without one on standard output, or with NO_COLOR
    (no-color.org), they are written as they come.
    """

    def __init__(self, *, is_plain: bool = False) -> None:
        self.is_interactive = sys.stdin.isatty() and sys.stdout.isatty()
        self._has_screen = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        self._has_styles = self._has_screen and not is_plain and not os.environ.get("NO_COLOR")
        self._readline = _open_history() if self.is_interactive else None
        self._stream: MarkdownStream | None = None  # of the reasoning or the answer that is being written
        self._is_reasoning = False
        self._wrap: WordWrap | None = None  # of the answer that is being written without styles
        self._modes: list[Any] | None = None  # of the terminal, while it shows no keys

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
        if self._has_styles:
            if self._stream is not None and piece.is_reasoning != self._is_reasoning:
                self._stream.finish()
                self._stream = None
                print()
            if self._stream is None:
                self._stream = self._open_stream(piece.is_reasoning)
            self._stream.feed(piece.text)
        elif not piece.is_reasoning:
            if self._has_screen and self._wrap is None:
                self._wrap = WordWrap(shutil.get_terminal_size().columns)
            text = piece.text if self._wrap is None else self._wrap.feed(without_controls(piece.text))
            print(text, end="", flush=True)

    def end_answer(self) -> None:
        """Ends an answer and its line, and shows the keys again."""
        if self._stream is not None:
            self._stream.finish()
            self._stream = None
        else:
            print("" if self._wrap is None else self._wrap.finish(), flush=True)
            self._wrap = None
        self._show_keys()

    def tell(self, text: str) -> None:
        """Writes a message of the chat itself: to standard error, unless a person reads standard output."""
        print(without_controls(text), file=sys.stdout if self.is_interactive else sys.stderr, flush=True)

    def ask(self, prompt: str) -> str | None:
        """The answer to a question, None at the end of the input; what was typed before the question is no answer."""
        if self.is_interactive:
            termios.tcflush(sys.stdin, termios.TCIFLUSH)
        line = self._read_line(prompt)
        if line and self._readline is not None:
            length = self._readline.get_current_history_length()
            if length and self._readline.get_history_item(length) == line:
                self._readline.remove_history_item(length - 1)
        return line

    def close(self) -> None:
        """Saves the lines that were entered for the next chat."""
        self._show_keys()
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

    def _show_keys(self) -> None:
        if self._modes is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._modes)
            self._modes = None

    def _open_stream(self, is_reasoning: bool) -> MarkdownStream:
        from rich.console import Console

        from server.cli.chat.markdown import THEME, MarkdownStream

        if self.is_interactive and self._modes is None:  # keys that are shown would move what is drawn
            self._modes = termios.tcgetattr(sys.stdin)
            silent = [*self._modes]
            silent[3] &= ~termios.ECHO
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, silent)
        self._is_reasoning = is_reasoning
        return MarkdownStream(Console(theme=THEME, highlight=False), "dim" if is_reasoning else "none")


def completions(line: str, text: str) -> list[str]:
    """What the last word of `line`, a `text`, may become: a command, or a path for a command that takes one."""
    if " " not in line:
        return [name for name in sorted(COMMANDS) if text.startswith("/") and name.startswith(text)]
    if line.split(maxsplit=1)[0] not in TAKE_PATHS:
        return []
    try:
        paths = sorted(glob.glob(os.path.expanduser(glob.escape(text)) + "*"))
    except (OSError, ValueError):  # a null character
        return []
    return [path + os.sep if os.path.isdir(path) else path for path in paths]


def _history_path() -> Path:
    """In the folder for the state of programs (XDG Base Directory Specification)."""
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

    def complete(text: str, state: int) -> str | None:
        found = completions(readline.get_line_buffer(), text)
        return found[state] if state < len(found) else None

    readline.set_completer_delims(" ")
    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")
    return readline
