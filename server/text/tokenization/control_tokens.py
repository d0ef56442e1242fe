"""Finds the names of control tokens in texts, and keeps messages from writing them (prompt injection)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeAlias

# A stretch of plain text, or a control token by its id.
Part: TypeAlias = str | int

# The interpreter lock is held during one search. 16 Ki characters take 2 ms at worst.
WINDOW = 16 << 10
# Names are found by so many of their first characters; the pattern of these stays small.
HEAD_LENGTH = 4
# Noncharacters of Unicode: no text needs them, and no tokenizer gives them a meaning.
MARKS = tuple(map(chr, range(0xFDD1, 0xFDF0)))

# Control tokens that end an output in the models that have them, whether or not the file says so.
END_TOKENS = frozenset(
    {
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",  # of DeepSeek
        "<end_of_turn>",
        "<end_of_utterance>",
        "<turn|>",  # of Gemma 4, which waits behind the other one for what a tool has answered
        "<|tool_response>",
    }
)
# The same where the file itself calls them control tokens: their names alone do not show it.
OTHER_END_TOKENS = frozenset({"<EOT>", "_<EOT>", "[EOT]", "[EOS]", "[e~["})
# In the vocabularies that have both of one of these, of gpt-oss and of Solar Open, <|end|> ends only one of several
# messages of an answer.
HARMONY_ENDS = (frozenset({"<|return|>", "<|call|>"}), frozenset({"<|flush|>", "<|calls|>"}))
_START_TOKENS = frozenset({"<start_of_turn>"})  # of those families that have no bars in their names
# With bars on both sides, or on one as Gemma 4 has them: <|turn> and <turn|>.
_BARRED_NAME = re.compile(r"<\|.+\|>|<\|\w+>|<\w+\|>", re.DOTALL)
CONTROL_NAME_BEGINS = "<"  # as all names do for which `is_control_name`


def is_control_name(token: str) -> bool:
    """Whether a token that is stored as text is a control token by its name; `<think>` and `<table>` are not."""
    return token in END_TOKENS or token in _START_TOKENS or _BARRED_NAME.fullmatch(token) is not None


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token that was added to a vocabulary after its training, and is looked for in a text before anything else."""

    token_id: int
    is_special: bool = False  # a control token, which has no text
    strips_left: bool = False  # swallows the white space in front of it
    strips_right: bool = False  # swallows the white space behind it


class ShieldedText(NamedTuple):
    """A prompt whose messages' texts are shielded (see `ControlTokens.shield`)."""

    text: str
    mark: str

    @property
    def plain(self) -> str:
        """The prompt without marks; computed at each access."""
        return without_mark(self.text, self.mark)


class ControlTokens:
    """The control tokens that an encoder looks for in texts, by name.

    Work is linear in a text's length, and the interpreter lock is released every few milliseconds. `is_exact` says that
    the encoder finds exactly these names, and none that its normalizer equates.
    """

    def __init__(self, ids: Mapping[str, int], *, is_exact: bool = True) -> None:
        self.ids = dict(ids)
        self.is_exact = is_exact
        self._prefixes = frozenset(name[:end] for name in ids for end in range(1, len(name) + 1))
        self._suffixes = frozenset(name[start:] for name in ids for start in range(1, len(name)))
        self._all_names = "\0".join(ids)  # to look a short text up in all of them
        self._longest = max(map(len, ids), default=0)
        heads = {name[:HEAD_LENGTH] for name in ids}
        # Lengths of the names that a text may hold where it has the head, the longest first.
        self._lengths = {
            head: sorted({len(name) for name in ids if name.startswith(head) or head.startswith(name)}, reverse=True)
            for head in heads
        }
        self._head = re.compile(_either(heads) or "(?!)", re.DOTALL)
        self._first = re.compile(_class({name[0] for name in ids}) if ids else "(?!)")
        # The cache belongs to the instance, so that it does not keep the tokens alive. A model has one template.
        self._remembered_breaks = lru_cache(maxsize=4)(self._find_breaks)

    def split(self, text: str) -> Iterator[Part]:
        """The parts of `text` in order, none of them empty. Of names that begin at one place, the longest counts."""
        begin = position = 0
        while position < len(text):
            end = position + WINDOW
            found = self._head.search(text, position, end + HEAD_LENGTH)
            if found is None:
                position = end
                continue
            start = position = found.start()
            name = self._name_at(text, start, found[0])
            if name is None:
                position += 1
                continue
            if begin < start:
                yield text[begin:start]
            yield self.ids[name]
            begin = position = start + len(name)
        if begin < len(text):
            yield text[begin:]

    def shield(self, text: str, mark: str, literals: str, *, is_key: bool = False) -> str:
        """`text` with a `mark` wherever it could become, or become part of, a control token's name.

        A name is broken behind its first character, and so is the beginning of a name that the text does not finish: a
        template may put other text there. What the template may look for in a text stays whole: where the beginning of
        a name, with the character behind it, occurs in `literals`, there is no mark.

        Args:
            mark: a character that occurs neither in `text` nor in a control token's name.
            literals: the template's source.
            is_key: whether the template looks values up by it; then there is no mark in front of it.
        """
        breaks = self._remembered_breaks(literals)
        pieces = [mark] if not is_key and self._may_end_a_name(text) else []
        for begin in range(0, len(text), WINDOW):
            end = begin + WINDOW
            if self._first.search(text, begin, end) is None:
                pieces.append(text[begin:end])
            else:
                pieces.append(breaks.marked(text, begin, end, mark))
        return "".join(pieces)

    def _name_at(self, text: str, start: int, head: str) -> str | None:
        for length in self._lengths[head]:
            name = text[start : start + length]
            if name in self.ids:
                return name
        return None

    def _find_breaks(self, literals: str) -> _Breaks:
        """The places for marks, as a pattern over a name's first character and what follows it.

        There is no mark where the text goes on as one of the strings in `literals`, nor behind a character of a word,
        which no template takes apart, unless a name goes on there.
        """
        allowed: dict[str, set[str]] = {name[0]: set() for name in self.ids}
        longest = 1
        for found in self._first.finditer(literals):
            start, end = found.start(), found.end()
            is_name = found[0] in self.ids
            while not is_name and literals[start : end + 1] in self._prefixes and end < len(literals):
                end += 1
                is_name = literals[start:end] in self.ids
            if not is_name and end < len(literals):
                allowed[found[0]].add(re.escape(literals[start + 1 : end + 1]))
                longest = max(longest, end - start)
        followers: dict[str, set[str]] = {}
        for name in self.ids:
            followers.setdefault(name[0], set()).update(name[1:2])
        firsts_by_rest: dict[str, list[str]] = {}
        for first, rests in allowed.items():
            if first in self.ids:
                rests.clear()
            elif first.isalnum() or first.isspace():
                rests.add(_class(followers[first], is_negated=True) if followers[first] else ".")
            firsts_by_rest.setdefault("|".join(sorted(rests)), []).append(first)
        branches = [
            f"(?<={_class(firsts)})" + (f"(?!{rest})" if rest else "")
            for rest, firsts in sorted(firsts_by_rest.items())
        ]
        pattern = f"(?<={_class(allowed)})(?:{'|'.join(branches)})" if branches else "(?!)"
        return _Breaks(re.compile(pattern, re.DOTALL), longest)

    def _may_end_a_name(self, text: str) -> bool:
        """Whether a template that writes a name's beginning before `text` would make a name of both."""
        for end in range(1, min(len(text), self._longest) + 1):
            if text[:end] in self._suffixes:
                return True
        return 0 < len(text) < self._longest and text in self._all_names


class _Breaks(NamedTuple):
    """The places in a text that get marks."""

    places: re.Pattern[str]  # of no length: behind a character
    longest: int  # characters behind a place that decide about it

    def marked(self, text: str, begin: int, end: int, mark: str) -> str:
        """`text[begin:end]` with a mark at each place in it, and behind it."""
        marked = self.places.sub(mark, text[begin : end + self.longest])
        position, num_beyond = len(marked), max(0, min(len(text) - end, self.longest))
        while num_beyond:
            position -= 1
            num_beyond -= marked[position] != mark
        return marked[:position]


def choose_mark(texts: Iterable[str]) -> str | None:
    """A noncharacter that is in none of `texts`; None where they have all of them."""
    left = list(MARKS)
    for text in texts:
        if not text.isascii():
            left = [mark for mark in left if mark not in text]
    return left[0] if left else None


def without_mark(text: str, mark: str) -> str:
    if len(text) <= WINDOW:
        return text.replace(mark, "")
    return "".join([text[start : start + WINDOW].replace(mark, "") for start in range(0, len(text), WINDOW)])


def _class(characters: Iterable[str], *, is_negated: bool = False) -> str:
    """A pattern of one of the characters, or of any other one; there is at least one."""
    return f"[{'^' if is_negated else ''}{''.join(map(re.escape, sorted(characters)))}]"


def _either(words: Iterable[str]) -> str:
    """A pattern of any of `words`, the longest first, that branches on one character at a time, to fail early."""
    rests: dict[str, set[str]] = {}
    for word in words:
        rests.setdefault(word[:1], set()).add(word[1:])
    is_optional = rests.pop("", None) is not None
    branches = [re.escape(first) + _either(rest) for first, rest in sorted(rests.items())]
    if not branches:
        return ""
    # One branch needs no group; at the top there is none either, so that `re` knows the first characters.
    pattern = branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"
    return f"(?:{pattern})?" if is_optional else pattern
