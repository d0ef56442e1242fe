"""Breaks the lines of a text between words while it streams to a terminal without styles."""

from __future__ import annotations

import re
import unicodedata

_FENCE = "```"
_WORDS = re.compile(r"\n|[^\S\n]+|\S+")
_COMPLETE = re.compile(r"\n|\S+(?=\s)")


class WordWrap:
    """Takes a text in any pieces; a word appears when it is complete. Code between fences keeps its lines."""

    def __init__(self, width: int) -> None:
        self._width = max(1, width)
        self._column = 0  # where the next character goes
        self._rest = ""  # the incomplete word, with the spaces before it
        self._line = ""  # the source's line so far
        self._is_code = False

    def feed(self, text: str) -> str:
        """What the terminal shows now."""
        text = self._rest + text
        # The last word may go on with the next piece, and the spaces before it belong to it.
        end = max((found.end() for found in _COMPLETE.finditer(text)), default=0)
        self._rest = text[end:]
        return self._lay(_WORDS.findall(text[:end]))

    def finish(self) -> str:
        """The last word."""
        rest, self._rest = self._rest, ""
        return self._lay(_WORDS.findall(rest))

    def _lay(self, words: list[str]) -> str:
        shown: list[str] = []
        space = ""
        for word in words:
            if word == "\n":
                if self._line.lstrip().startswith(_FENCE):
                    self._is_code = not self._is_code
                shown.append("\n")
                self._column, self._line, space = 0, "", ""
                continue
            self._line += word
            if word.isspace():
                space = word
                continue
            length = _width(word)
            if self._column and self._column + len(space) + length > self._width and not self._is_code:
                shown.append("\n")
                self._column, space = 0, ""
            shown.append(space + word)
            self._column += len(space) + length
            space = ""
        return "".join(shown)


def _width(word: str) -> int:
    """The columns of a word in a terminal."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in word
    )
