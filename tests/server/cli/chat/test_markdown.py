"""Markdown in the terminal: what each construct becomes, what stays in the scrollback, and what never reaches it."""

from __future__ import annotations

import io
import random
import re

import pytest
from rich.console import Console

from server.cli.chat.markdown import THEME, MarkdownStream
from server.startup.plain_text import without_controls

CONTROL = re.compile(r"\x1b\[(\??[\d;]*)([A-Za-z])")
DOCUMENT = """\
# Tides

The tide *rises* and **falls**, as `tide()` says,
twice a day.

1. First a long item that has to be wrapped somewhere in the middle of it
2. then another
   - with one inside

```python
def tide(hour):

    return "high" if hour % 12 < 6 else "low, which is a long line of code"
```
> quoted

| a | b |
|---|---|
| 1 | 2 |

The end."""


class Screen:
    """A terminal of which everything that scrolled past can be read; its rows do not change when they have."""

    def __init__(self, width: int, height: int) -> None:
        self.rows, self.row, self.width, self.height = [""], 0, width, height

    def take(self, text: str) -> None:
        place = 0
        for found in CONTROL.finditer(text):
            self._write(text[place : found.start()])
            place = found.end()
            match found[2]:
                case "A":
                    self.row -= int(found[1])
                    assert self.row >= max(0, len(self.rows) - self.height), "it has scrolled past"
                case "K":
                    self.rows[self.row] = ""
                case "m":
                    self.rows[self.row] += found[0]
                case kind:
                    assert kind in "hl"
        self._write(text[place:])

    def _write(self, text: str) -> None:
        for character in text:
            if character == "\n":
                self.row += 1
                if self.row == len(self.rows):
                    self.rows.append("")
            elif character != "\r":
                self.rows[self.row] += character


def written(*pieces: str, width: int = 40, height: int = 200, style: str = "none") -> str:
    out = io.StringIO()
    console = Console(
        file=out, force_terminal=True, color_system="standard", width=width, height=height, theme=THEME, highlight=False
    )
    stream = MarkdownStream(console, style)
    for piece in pieces:
        stream.feed(piece)
    stream.finish()
    return out.getvalue()


def styled(*pieces: str, width: int = 40, height: int = 200) -> str:
    screen = Screen(width, height)
    screen.take(written(*pieces, width=width, height=height))
    return "\n".join(row.rstrip() for row in screen.rows).rstrip("\n")


def shown(*pieces: str, width: int = 40, height: int = 200) -> str:
    return CONTROL.sub("", styled(*pieces, width=width, height=height))


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("plain text\nof two lines", "plain text\nof two lines"),
        ("# Tides", "\x1b[1;4mTides\x1b[0m"),
        ("####### seven", "####### seven"),
        ("#hashtag", "#hashtag"),
        ("**bold** and *italic*", "\x1b[1mbold\x1b[0m and \x1b[3mitalic\x1b[0m"),
        ("a `co*de` b", "a \x1b[36mco*de\x1b[0m b"),
        ("2 * 3 * 4 and snake_case_name", "2 * 3 * 4 and snake_case_name"),
        (r"\*no emphasis\* \n", r"*no emphasis* \n"),
        ("- one\n  * two\n+ three", "• one\n  • two\n\n• three"),
        ("1. one\n1. one more\n7. seven", "1. one\n1. one more\n7. seven"),
        ("> said", "\x1b[2m▌ \x1b[0m\x1b[2msaid\x1b[0m"),
        ("---\nx", "\x1b[2m" + "-" * 40 + "\x1b[0m\n\nx"),
        ("```\nf(*a)\n\n  # no heading\n```\nx", "\x1b[36mf(*a)\x1b[0m\n\n\x1b[36m  # no heading\x1b[0m\n\nx"),
        ("~~~~\n```\n~~~~\nx", "\x1b[36m```\x1b[0m\n\nx"),
        ("```\nnever closed", "\x1b[36mnever closed\x1b[0m"),
        ("*lone\nx", "*lone\nx"),
        ("<think> a <b> ![a](b) <http://c>", "<think> a <b> !a (\x1b[4;34mb\x1b[0m) <http://c>"),
        ("[here](http://tide)", "here (\x1b[4;34mhttp://tide\x1b[0m)"),
        ("[bold]no markup[/bold] :smile:", "[bold]no markup[/bold] :smile:"),
    ],
)
def test_what_a_construct_becomes(text: str, rendered: str) -> None:
    assert styled(text) == rendered


def test_code_of_a_language_has_colours_and_a_long_line_stays_one_line() -> None:
    text = styled("```python\nreturn 1\n" + "x" * 60 + "\n```")
    assert "\x1b[94;49mreturn\x1b[0m" in text
    assert "x" * 60 in text


def test_reasoning_is_dim() -> None:
    assert "\x1b[2mso \x1b[0m\x1b[1;2mbold\x1b[0m" in written("so **bold**", style="dim")


@pytest.mark.parametrize("height", [200, 8])
def test_the_split_of_the_text_makes_no_difference(height: int) -> None:
    whole = shown(DOCUMENT, height=height)
    assert "  • with one inside" in whole
    assert shown(*DOCUMENT, height=height) == whole
    draw = random.Random(7)
    for _ in range(10):
        cuts = sorted(draw.sample(range(len(DOCUMENT)), 12))
        pieces = [DOCUMENT[a:b] for a, b in zip([0, *cuts], [*cuts, len(DOCUMENT)], strict=True)]
        assert shown(*pieces, height=height) == whole


def test_words_are_not_broken() -> None:
    lines = shown("several words of a tide " * 20, width=37).splitlines()
    assert len(lines) > 10
    assert {word for line in lines for word in line.split()} == {"several", "words", "of", "a", "tide"}


@pytest.mark.parametrize(
    "text",
    [
        "several words of a tide " * 40,
        "several **words** of 7 tides - no *list\n" * 30,
        "\n".join(f"{number}. the item {number}" for number in range(1, 40)),
        "1. the item\n" + "".join(f"   - inside {number}\n" for number in range(40)),
        "```python\n" + "".join(f"x{number} = {number}\n" for number in range(40)) + "```\nend",
        "| a |\n|---|\n" + "".join(f"| {number} {'wide ' * (number % 7)}|\n" for number in range(40)),
    ],
)
def test_what_is_higher_than_the_screen_is_there_once(text: str) -> None:
    assert shown(*text, height=7) == shown(text, height=200)


@pytest.mark.parametrize("begin", ["", "- ", "> ", "# ", "```\n", "```python\n", "| a |\n|---|\n| "])
def test_the_output_of_a_model_cannot_steer_the_terminal(begin: str) -> None:
    text = written(begin + "a\x1b]0;title\x07b\x1b[2Jc\u202ed\r\x9b31m &#x202e;&#27; e\n")
    rest = CONTROL.sub("", text).replace("\r", "")
    assert without_controls(rest) == rest
    assert "\x1b[2J" not in text
    assert "a]0;titleb[2Jcd31m" in rest


def test_the_name_of_a_language_cannot_either() -> None:
    assert "\x1b[2J" not in written("```py\x1b[2J\nx\n```\n")
    assert without_controls("\ttab\nline\x9b31m") == "\ttab\nline31m"
