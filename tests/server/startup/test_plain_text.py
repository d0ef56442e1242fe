"""Text of others in a terminal."""

import io

import pytest

from server.startup.plain_text import one_line, without_controls
from server.startup.progress import ProgressReporter

ATTACKS = {
    "a title": "\x1b]0;owned\x07",
    "a link": "\x1b]8;;http://evil\x1b\\click\x1b]8;;\x1b\\",
    "the clipboard": "\x1b]52;c;ZXZpbA==\x07",
    "an erased screen": "\x1b[2J\x1b[H",
    "a sequence of eight bits": "\x9b2J\x9d0;owned\x9c",
    "an overwritten line": "good\rbad\x08\x7f",
    "reversed text": "\u202egpj.exe\u2066a\u2069\u200f\u061c",
}


@pytest.mark.parametrize("text", ATTACKS.values(), ids=ATTACKS)
def test_nothing_in_it_controls_the_terminal(text: str) -> None:
    for shown in (without_controls(f"a\t{text}\nb"), one_line(f"a {text} b")):
        assert not [char for char in shown if char not in "\t\n" and (ord(char) < 32 or 127 <= ord(char) < 160)]
        assert not set(shown) & set("\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
    assert without_controls("plain é 🌊\n\tindented") == "plain é 🌊\n\tindented"
    assert "\n" not in one_line("two\nlines\u2028and three")


@pytest.mark.parametrize("text", ATTACKS.values(), ids=ATTACKS)
@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_shows_names_without_them(text: str, is_terminal: bool) -> None:
    class Stream(io.StringIO):
        def isatty(self) -> bool:
            return is_terminal

    stream = Stream()
    with ProgressReporter(stream) as progress:
        progress(f"download {text}", 1, 2, text)
        progress(f"download {text}", 2, 2, text)
    assert text not in stream.getvalue()
    assert not set(stream.getvalue()) & set("\x07\x9b\x9d\u202e")
    assert "\x1b]" not in stream.getvalue()
