"""Lines of a streamed text end between words, however it is split."""

from __future__ import annotations

import pytest

from server.cli.chat.word_wrap import WordWrap

TEXT = """The tide comes in, and the tide goes out again.

  indented   words stay
averyveryverylongwordthatfitsnowhere and more
```python
a_line_of_code = that_is_longer + than_the_terminal
```
日本語 の 文章 も 折り返す
"""
SHOWN = """The tide comes in,
and the tide goes
out again.

  indented   words
stay
averyveryverylongwordthatfitsnowhere
and more
```python
a_line_of_code = that_is_longer + than_the_terminal
```
日本語 の 文章 も
折り返す
"""


@pytest.mark.parametrize("length", [1, 2, 3, 7, 1000])
def test_every_split_gives_the_same_lines(length: int) -> None:
    wrap = WordWrap(20)
    pieces = [TEXT[start : start + length] for start in range(0, len(TEXT), length)]
    assert "".join(map(wrap.feed, pieces)) + wrap.finish() == SHOWN


def test_a_word_appears_when_it_is_complete() -> None:
    wrap = WordWrap(20)
    assert [wrap.feed(piece) for piece in ("The", " ti", "de ", "comes")] == ["", "The", " tide", ""]
    assert wrap.finish() == " comes"
