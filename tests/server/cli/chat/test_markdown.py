"""Markdown in the terminal: what each construct becomes, and that the split of the text makes no difference."""

from __future__ import annotations

import pytest

from server.cli.chat.markdown import MarkdownStream
from server.cli.client.plain_text import without_controls


def render(*pieces: str) -> str:
    stream = MarkdownStream()
    return "".join(stream.feed(piece) for piece in pieces) + stream.finish()


def styled(codes: str, text: str) -> str:
    return f"\x1b[{codes}m{text}\x1b[0m"


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("plain text\nof two lines", "plain text\nof two lines"),
        ("# Tides", styled("1;4", "Tides")),
        ("####### seven", "####### seven"),
        ("#hashtag", "#hashtag"),
        ("**bold** and *italic*", styled("1", "bold") + " and " + styled("3", "italic")),
        ("***both***", styled("1;3", "both")),
        ("a `co*de` b", "a " + styled("36", "co*de") + " b"),
        ("``a ` b``", styled("36", "a ` b")),
        ("2 * 3 * 4 and snake_case_name", "2 * 3 * 4 and snake_case_name"),
        (r"\*no emphasis\* \n", r"*no emphasis* \n"),
        ("- one\n  * two\n+ three", "• one\n  • two\n• three"),
        ("> said", styled("2", "│ said")),
        ("---\nx", styled("2", "─" * 40) + "\nx"),
        ("```python\nf(*a)\n  # no heading\n```\nx", f"{styled('36', 'f(*a)')}\n{styled('36', '  # no heading')}\nx"),
        ("~~~~\n```\n~~~~\nx", styled("36", "```") + "\nx"),
        ("```never closed\nx", styled("36", "x")),
        ("*lone\nx", styled("3", "lone") + "\nx"),
        ("- [ ] | a | b |", "• [ ] | a | b |"),
    ],
)
def test_what_a_construct_becomes(text: str, rendered: str) -> None:
    assert render(text) == rendered
    assert render(*text) == rendered


def test_text_is_written_as_soon_as_its_meaning_is_known() -> None:
    stream = MarkdownStream()
    assert stream.feed("The tide") == "The tide"
    assert stream.feed(" is *") == " is "
    assert stream.feed("h") == "\x1b[3mh"
    assert stream.feed("igh*") == "igh"
    assert stream.finish() == "\x1b[0m"


def test_the_output_of_a_model_cannot_steer_the_terminal() -> None:
    assert render("a\x1b]0;title\x07b\x1b[2Jc\u202ed\r\n") == "a]0;titleb[2Jcd\n"
    assert without_controls("\ttab\nline\x9b31m") == "\ttab\nline31m"
