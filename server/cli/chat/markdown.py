"""Markdown for the terminal, rendered while it streams.

A character is written as soon as it is known what it means: only the marker at the beginning of a line, and a run of
`*`, `_` or backquotes, wait for the character behind them. Headings, emphasis, code spans, fenced code, lists, quotes
and rules are rendered; everything else, tables among it, stays as it is.
"""

from __future__ import annotations

import re
from string import punctuation

from server.cli.client.plain_text import without_controls

_RESET, _BOLD, _DIM, _ITALIC, _UNDERLINE, _CODE = "0", "1", "2", "3", "4", "36"
_RULE_WIDTH = 40

# The text of a line so far may still become a marker; anything else is plain text.
_MAYBE_MARKER = re.compile(r" *(#{0,6}|[-*_]{1,}|\+|>|[`~]{1,2}|(```|~~~).*)")
_FENCE = re.compile(r" *(`{3,}|~{3,})[^`]*")
_RULE = re.compile(r" {0,3}(-{3,}|\*{3,}|_{3,}) *")
_HEADING = re.compile(r" {0,3}#{1,6} ")
_BULLET = re.compile(r"( *)[-*+] ")
_QUOTE = re.compile(r" {0,3}> ?")


class MarkdownStream:
    """LoopThrottle pieces of markdown into text with ANSI styles; how the text is split makes no difference.

    print(stream.feed(piece), end="", flush=True) … print(stream.finish())
    """

    def __init__(self) -> None:
        self._out: list[str] = []
        self._line: str | None = ""  # the beginning of a line that may still be a marker; None within a line
        self._fence = ""  # the marker that began the fenced code around
        self._base: tuple[str, ...] = ()  # styles of the whole line
        self._styles: list[str] = []  # emphasis that is open
        self._code = ""  # the run of backquotes that began the code span around
        self._run = ""  # a run of one marker character, whose meaning the next character tells
        self._before = " "  # the character before the run
        self._is_escaped = False  # the character before was a backslash
        self._shown: tuple[str, ...] = ()

    def feed(self, text: str) -> str:
        """What can be written of the text so far, after what was written already."""
        for character in without_controls(text):
            self._take(character)
        return self._drain()

    def finish(self) -> str:
        """What was held back, and the end of every style."""
        if self._line is not None:
            self._begin_line(is_whole=True)
        self._end_run("\n")
        if self._is_escaped:
            self._put("\\")
        self._show(())
        return self._drain()

    def _drain(self) -> str:
        text = "".join(self._out)
        self._out.clear()
        return text

    def _take(self, character: str) -> None:
        if self._line is None:
            self._take_inline(character)
        elif character == "\n":
            fence = self._fence
            self._begin_line(is_whole=True)
            if fence == self._fence:
                self._end_line()
            else:
                self._line = ""  # the line of a fence is not shown
        else:
            self._line += character
            if not self._is_maybe_marker(self._line):
                self._begin_line(is_whole=False)

    def _is_maybe_marker(self, line: str) -> bool:
        if self._fence:
            return not line.strip().strip(self._fence[0])
        return _MAYBE_MARKER.fullmatch(line) is not None

    def _begin_line(self, *, is_whole: bool) -> None:
        """Decides what the line is, by its beginning, or by all of it."""
        line, self._line = self._line or "", None
        if self._fence:
            if is_whole and line.strip().startswith(self._fence) and not line.strip().strip(self._fence[0]):
                self._fence, self._base = "", ()
            else:
                self._put(line)
            return
        if is_whole and (fence := _FENCE.fullmatch(line)):
            self._fence, self._base = fence[1], (_CODE,)
        elif is_whole and _RULE.fullmatch(line):
            self._base = (_DIM,)
            self._put("─" * _RULE_WIDTH)
        elif heading := _HEADING.match(line):
            self._base = (_BOLD, _UNDERLINE)
            self._take_all(line[heading.end() :])
        elif bullet := _BULLET.match(line):
            self._put(f"{bullet[1]}• ")
            self._take_all(line[bullet.end() :])
        elif quote := _QUOTE.match(line):
            self._base = (_DIM,)
            self._put("│ ")
            self._take_all(line[quote.end() :])
        else:
            self._take_all(line)

    def _take_all(self, text: str) -> None:
        for character in text:
            self._take_inline(character)

    def _take_inline(self, character: str) -> None:
        if self._fence:
            if character == "\n":
                self._end_line()
            else:
                self._put(character)
            return
        if self._run and character != self._run[-1]:
            self._end_run(character)
        if self._is_escaped:
            self._is_escaped = False
            if character in punctuation:
                self._put(character)
                return
            self._put("\\")
        if character == "\\" and not self._code:
            self._is_escaped = True
        elif character == "\n":
            self._end_line()
        elif character == "`" or (character in "*_" and not self._code):
            self._run += character
        else:
            self._put(character)

    def _end_run(self, after: str) -> None:
        """Gives the run that was held back its meaning: `self._before` and `after` stand around it."""
        run, self._run = self._run, ""
        if not run:
            return
        if run[0] == "`":
            if self._code in ("", run):
                self._code = "" if self._code else run
            else:
                self._put(run)
            return
        style = {1: (_ITALIC,), 2: (_BOLD,), 3: (_BOLD, _ITALIC)}.get(len(run), ())
        within_word = run[0] == "_" and self._before.isalnum() and after.isalnum()
        if style and not within_word and all(one in self._styles for one in style) and not self._before.isspace():
            self._styles = [one for one in self._styles if one not in style]
        elif style and not within_word and not any(one in self._styles for one in style) and not after.isspace():
            self._styles += style
        else:
            self._put(run)

    def _end_line(self) -> None:
        """Emphasis never reaches beyond its line here, so that a lone marker does no harm for long."""
        self._end_run("\n")
        self._styles, self._code = [], ""
        self._show(())
        self._out.append("\n")
        self._base = (_CODE,) if self._fence else ()
        self._line, self._before = "", " "

    def _put(self, text: str) -> None:
        self._show((*self._base, *self._styles, *((_CODE,) if self._code else ())))
        self._out.append(text)
        self._before = text[-1:] or self._before

    def _show(self, styles: tuple[str, ...]) -> None:
        if styles == self._shown:
            return
        self._out.append(f"\x1b[{_RESET}m" if self._shown else "")
        self._out.append(f"\x1b[{';'.join(styles)}m" if styles else "")
        self._shown = styles
