"""Markdown in the terminal while it streams, rendered by rich.

What is complete is printed once and stays in the terminal's scrollback: blocks, the items of a list, the lines of
code. Only the incomplete rest below it is drawn again and again, and never more of it than the screen is high.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.markdown import CodeBlock, Heading, ListItem, Markdown
from rich.segment import Segment, Segments
from rich.style import Style
from rich.syntax import Syntax
from rich.text import Text
from rich.theme import Theme

from server.startup.plain_text import without_controls

THEME = Theme(
    {
        "markdown.code": "cyan", "markdown.block_quote": "dim", "markdown.item.number": "none",
        "markdown.h1": "bold underline", "markdown.h2": "bold underline", "markdown.h3": "bold underline",
        "markdown.h4": "bold", "markdown.h5": "bold", "markdown.h6": "bold", "markdown.link": "none",
    }
)  # fmt: skip
_CODE_THEME = "ansi_dark"  # the colours of the terminal, on its own background
_FRAME_S = 0.08

# HTML, images and automatic links are shown as they are written: rich would leave out a part of them.
_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"]).disable(["image", "autolink"])
# Where a paragraph may be cut in two: a word that begins with a letter never begins another kind of block.
_BEFORE_WORD = re.compile(r"\s(?=[^\W\d_])")

Line = list[Segment]


class MarkdownStream:
    """Writes markdown to a terminal piece by piece; how the text is split makes no difference to what remains."""

    def __init__(self, console: Console, style: str = "none") -> None:
        self._console = console
        self._style = style
        self._source = ""  # what is not complete
        self._num_printed = 0  # lines of the code at the beginning of `_source` that are printed already
        self._needs_gap = False  # an empty line comes before the next block
        self._live = Live(
            console=console, transient=True, auto_refresh=False, get_renderable=self._draw, vertical_overflow="crop",
            redirect_stdout=False, redirect_stderr=False,
        )  # fmt: skip
        # Live has such a thread too, but does not keep it from writing in the middle of what is printed.
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._refresh, daemon=True)

    def feed(self, text: str) -> None:
        with self._lock:
            self._source += without_controls(text)
            if not self._live.is_started:
                self._live.start()
                self._thread.start()
            if "\n" in text:
                self._print_complete()
            if len(self._source) > self._console.width * self._max_height // 2:
                self._cut_paragraph()

    def finish(self) -> None:
        self._end.set()
        with self._lock:
            rest, self._source = _blocks(self._source), ""
            if self._live.is_started:
                self._live.stop()
            for block in rest:
                self._print(block)

    def _refresh(self) -> None:
        while not self._end.wait(_FRAME_S):
            with self._lock:
                if self._live.is_started:
                    self._live.refresh()

    @property
    def _max_height(self) -> int:
        return max(2, self._console.height - 1)

    def _print_complete(self) -> None:
        """Prints all blocks but the last one, and of that one the items or lines that nothing can change any more."""
        blocks = _blocks(self._source)
        if not blocks:
            return
        complete, last = blocks[:-1], blocks[-1]
        if len(last.items) > 1:
            complete.append(last.part(last.items[0], last.items[-1]))
            last = last.part(last.items[-1], len(last.tokens) - 1, continues=True)
        self._source = "\n".join(self._source.split("\n")[last.first_line :])
        for block in complete:
            self._print(block)
        if last.continues:
            self._needs_gap = False
        if last.is_code:
            lines = self._code_lines(last)
            self._print_lines(lines if self._source.endswith("\n") else lines[:-1])

    def _cut_paragraph(self) -> None:
        """Prints the upper half of a paragraph that is about to be higher than the screen."""
        blocks = _blocks(self._source)
        if len(blocks) != 1 or blocks[0].tokens[0].type != "paragraph_open":
            return
        if len(self._lines(blocks[0])) < self._max_height:
            return
        source = self._source
        cuts = [found.end() for found in _BEFORE_WORD.finditer(source)]
        height = self._max_height // 2
        index = bisect_right(cuts, height, key=lambda cut: sum(len(self._lines(b)) for b in _blocks(source[:cut])))
        if index:
            self._source = source[cuts[index - 1] :]
            for block in _blocks(source[: cuts[index - 1]]):
                self._print(block)
            self._needs_gap = False  # what follows goes on with the paragraph

    def _print(self, block: Block) -> None:
        if block.is_code:
            self._print_lines(self._code_lines(block))
        else:
            self._print_lines([_text(line) for line in self._lines(block)])
        self._num_printed, self._needs_gap = 0, True

    def _print_lines(self, lines: Sequence[Text]) -> None:
        if self._num_printed == 0 and lines and self._needs_gap:
            self._console.print()
        for line in lines[self._num_printed :]:
            # A line of code may be longer than the terminal is wide. The terminal breaks it, so that it can be copied.
            self._console.print(line, soft_wrap=True)
        self._num_printed = max(self._num_printed, len(lines))

    def _draw(self) -> Segments:
        lines: list[Line] = []
        for block in _blocks(self._source):
            num_printed = 0 if lines else self._num_printed
            if lines or (self._needs_gap and not num_printed):
                lines.append([])
            if block.is_code:
                code = Text("\n").join(self._code_lines(block)[num_printed:])
                lines += [_stripped(line) for line in self._console.render_lines(code, pad=False)]
            else:
                lines += self._lines(block)
        return Segments(segment for line in lines[-self._max_height :] or [[]] for segment in (*line, Segment.line()))

    def _lines(self, block: Block) -> list[Line]:
        """The block as wrapped lines, without spaces at their ends or empty lines around it."""
        markdown = _Markdown("", code_theme=_CODE_THEME, style=self._style, hyperlinks=False)
        markdown.parsed = block.tokens
        lines = [_stripped(line) for line in self._console.render_lines(markdown, pad=False)]
        while lines and not lines[-1]:
            lines.pop()
        while lines and not lines[0]:
            lines.pop(0)
        return lines

    def _code_lines(self, block: Block) -> list[Text]:
        token = block.tokens[0]
        text = _highlighted(token.content, token.info, self._console.get_style(self._style))
        return list(text.split("\n")) if text else []


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a document, or some items of a list."""

    tokens: list[Token]
    continues: bool = False  # it goes on with the list before

    @property
    def first_line(self) -> int:
        found = self.tokens[1 if self.continues else 0].map
        return found[0] if found else 0

    @property
    def is_code(self) -> bool:
        return self.tokens[0].type in ("fence", "code_block")

    @property
    def items(self) -> list[int]:
        return [i for i, token in enumerate(self.tokens) if token.type == "list_item_open" and token.level == 1]

    def part(self, begin: int, end: int, *, continues: bool = False) -> Block:
        """The list with the items from the token `begin` to the token `end`."""
        return Block([self.tokens[0], *self.tokens[begin:end], self.tokens[-1]], continues)


def _blocks(source: str) -> list[Block]:
    tokens = _PARSER.parse(source)
    for token in tokens:
        for child in token.children or ():
            if child.type == "softbreak":  # verses and addresses keep their lines
                child.type = "hardbreak"
    starts = [i for i, token in enumerate(tokens) if token.level == 0 and token.nesting >= 0]
    return [Block(tokens[start:end]) for start, end in pairwise([*starts, len(tokens)])]


class _Code(CodeBlock):
    """Code without a frame or a background, so that it can be copied from the terminal."""

    def __rich_console__(self, _console: Console, _options: ConsoleOptions) -> RenderResult:
        yield _highlighted(str(self.text), self.lexer_name, self.style)


class _Heading(Heading):
    LEVEL_ALIGN = {}  # noqa: RUF012 - all at the left edge


class _Item(ListItem):
    """An item whose marker is at the left edge; a number is the one that is written, with a dot."""

    number = ""

    @classmethod
    def create(cls, markdown: Markdown, token: Token) -> _Item:
        item = cls()
        item.number = token.info
        return item

    def render_bullet(self, console: Console, options: ConsoleOptions) -> RenderResult:
        return self._render(console, options, "• ")

    def render_number(self, console: Console, options: ConsoleOptions, number: int, last_number: int) -> RenderResult:
        return self._render(console, options, f"{self.number}. ")

    def _render(self, console: Console, options: ConsoleOptions, marker: str) -> RenderResult:
        inner = options.update(width=max(1, options.max_width - len(marker)))
        for number, line in enumerate(console.render_lines(self.elements, inner, style=self.style, pad=False)):
            yield Segment(" " * len(marker) if number else marker, self.style)
            yield from line
            yield Segment.line()


class _Markdown(Markdown):
    elements = Markdown.elements | {
        "fence": _Code, "code_block": _Code, "heading_open": _Heading, "list_item_open": _Item
    }  # fmt: skip


def _highlighted(code: str, info: str, style: Style) -> Text:
    lexer_name = info.partition(" ")[0]
    if lexer_name:
        syntax = Syntax("", lexer_name, theme=_CODE_THEME, background_color="default")
        text = syntax.highlight(without_controls(code))
    else:
        text = Text(without_controls(code), "cyan")
    text.rstrip()
    text.stylize_before(style)
    return text


def _stripped(line: Line) -> Line:
    """A line without spaces at its end, and without anything that steers the terminal, such as a decoded `&#x202e;`."""
    line = [Segment(without_controls(text), style) for text, style, control in line if not control]
    while line and not line[-1].text.rstrip(" "):
        line.pop()
    if line:
        line[-1] = Segment(line[-1].text.rstrip(" "), line[-1].style)
    return line


def _text(line: Line) -> Text:
    return Text.assemble(*((text, style or "") for text, style, _ in line))
