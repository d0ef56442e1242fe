"""Parses the regular expressions of JSON schemas, with look-arounds, into expressions that have none."""

from __future__ import annotations

import re
from typing import NamedTuple, TypeAlias

from server.structured_output.schemas.regular_expression import (
    ANY_BUT_LINE_END,
    CLASSES,
    Characters,
    Expressions,
    Interval,
    UnknownPattern,
    complement,
)

MAX_CHARS = 2000  # of a pattern
MAX_REPETITIONS = 1000
_QUANTIFIER = re.compile(r"([*+?]|\{(?P<least>\d+)(?P<comma>,(?P<most>\d*))?\})\??")
_GROUP = re.compile(r"\((?:\?(?P<kind>:|=|!|<=|<!|P?<[A-Za-z_]\w*>))?")
_SPECIAL = frozenset("^$.|?*+()[]{}\\")
_CONTROLS = {"n": 10, "t": 9, "r": 13, "f": 12, "v": 11, "a": 7}
_HEX = re.compile(r"x(?P<x>[0-9A-Fa-f]{2})|u(?P<u>[0-9A-Fa-f]{4})|[xu]\{(?P<braced>[0-9A-Fa-f]{1,6})\}")


class _Look(NamedTuple):
    """A look-around: what must, or must not, stand before or behind a place."""

    inner: _Choice
    is_behind: bool  # behind the look, in the text before the place
    is_negative: bool


class _Anchor(NamedTuple):
    is_end: bool


class _Group(NamedTuple):
    inner: _Choice


class _Repeat(NamedTuple):
    part: _Item
    least: int
    most: int | None


class _Set(NamedTuple):
    chars: Characters


_Item: TypeAlias = "_Look | _Anchor | _Group | _Repeat | _Set"
_Choice: TypeAlias = "list[list[_Item]]"  # of sequences


def parse(pattern: str, made: Expressions) -> int:
    """The expression of the texts in which `pattern` is found. Raises UnknownPattern."""
    if len(pattern) > MAX_CHARS:
        raise UnknownPattern("it is too long")
    reader = _Reader(pattern)
    choice = reader.choice()
    if reader.at < len(pattern):
        raise UnknownPattern("it has a bracket too many")
    return _Translation(made).search(choice)


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self.at = 0
        self._depth = 0

    def choice(self) -> _Choice:
        self._depth += 1
        if self._depth > 50:
            raise UnknownPattern("it is nested too deeply")
        found = [self._sequence()]
        while self._next() == "|":
            self.at += 1
            found.append(self._sequence())
        self._depth -= 1
        return found

    def _next(self) -> str:
        return self._text[self.at : self.at + 1]

    def _sequence(self) -> list[_Item]:
        items: list[_Item] = []
        while (char := self._next()) and char not in "|)":
            items.append(self._quantified(self._item(char)))
        return items

    def _item(self, char: str) -> _Item:
        if char == "(":
            return self._group()
        if char == "[":
            return _Set(self._class())
        self.at += 1
        if char in "^$":
            return _Anchor(char == "$")
        if char == ".":
            return _Set(ANY_BUT_LINE_END)
        if char == "\\":
            return _Set(self._escape())
        if char in _SPECIAL:
            raise UnknownPattern(f"it has a {char} that means nothing")
        return _Set(((ord(char), ord(char)),))

    def _quantified(self, item: _Item) -> _Item:
        found = _QUANTIFIER.match(self._text, self.at)
        if found is None:
            return item
        if not isinstance(item, _Group | _Set):
            raise UnknownPattern("it repeats what has no length")
        self.at = found.end()
        if self._next() and self._next() in "*+?":
            raise UnknownPattern("it repeats a repetition")
        least = int(found["least"] or (1 if found[1] == "+" else 0))
        most: int | None = least
        if found["comma"]:
            most = int(found["most"]) if found["most"] else None
        elif found["least"] is None:
            most = 1 if found[1] == "?" else None
        if least > MAX_REPETITIONS or (most is not None and not least <= most <= MAX_REPETITIONS):
            raise UnknownPattern("it has too many repetitions")
        return _Repeat(item, least, most)

    def _group(self) -> _Item:
        found = _GROUP.match(self._text, self.at)
        assert found is not None
        self.at = found.end()
        kind = found["kind"] or ""
        if not kind and self._next() == "?":
            raise UnknownPattern("it has a group that is not known here")
        inner = self.choice()
        if self._next() != ")":
            raise UnknownPattern("a bracket is not closed")
        self.at += 1
        if kind in ("=", "!", "<=", "<!"):
            return _Look(inner, is_behind=kind[0] == "<", is_negative=kind[-1] == "!")
        return _Group(inner)

    def _class(self) -> Characters:
        self.at += 1
        is_negative = self._next() == "^"
        self.at += is_negative
        found: list[Interval] = []
        while (char := self._next()) != "]" or not found:
            if not char or char in "[]" or self._text[self.at : self.at + 2] in ("&&", "--", "~~"):
                raise UnknownPattern("it has a class that is not known here")
            low = self._class_char()
            is_range = self._next() == "-" and self._text[self.at + 1 : self.at + 2] not in ("]", "")
            if not is_range:
                found += low
                continue
            self.at += 1
            high = self._class_char()
            if len(low) != 1 or len(high) != 1 or low[0][0] != low[0][1] or high[0][0] != high[0][1]:
                raise UnknownPattern("it has a range of classes")
            if low[0][0] > high[0][0]:
                raise UnknownPattern("it has a range that is empty")
            found.append((low[0][0], high[0][0]))
        self.at += 1
        return complement(found) if is_negative else tuple(found)

    def _class_char(self) -> Characters:
        char = self._next()
        if not char or char == "[":
            raise UnknownPattern("it has a class that is not known here")
        self.at += 1
        return self._escape() if char == "\\" else ((ord(char), ord(char)),)

    def _escape(self) -> Characters:
        char = self._next()
        if char in CLASSES:
            self.at += 1
            return CLASSES[char]
        found = _HEX.match(self._text, self.at)
        if found is not None:
            self.at = found.end()
            code = int(found["x"] or found["u"] or found["braced"], 16)
            if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
                raise UnknownPattern("it has a character that there is not")
        elif char in _CONTROLS:
            self.at += 1
            code = _CONTROLS[char]
        elif char and not char.isalnum():
            self.at += 1
            code = ord(char)
        else:
            raise UnknownPattern(f"it has \\{char}")
        return ((code, code),)


class _Translation:
    """Turns what has been read into expressions; a look-ahead is a condition on all that follows it."""

    def __init__(self, made: Expressions) -> None:
        self._made = made

    def search(self, choice: _Choice) -> int:
        """The texts in which one of some sequences is found."""
        made = self._made
        found = []
        for items in choice:
            rest = self._opened(items)
            is_begin = bool(rest) and rest[0] == _Anchor(is_end=False)
            before = made.empty if is_begin else made.everything
            found.append(self._behind(before, rest[is_begin:], made.everything))
        return made.either(*found)

    @staticmethod
    def _opened(items: list[_Item]) -> list[_Item]:
        """A sequence whose only group is opened, where that has one sequence."""
        while len(items) == 1 and isinstance(items[0], _Group) and len(items[0].inner) == 1:
            items = items[0].inner[0]
        return items

    def _behind(self, before: int, items: list[_Item], tail: int) -> int:
        """The texts that begin with `before`, go on with `items` and end with `tail`."""
        made = self._made
        behind = next((at for at, item in enumerate(items) if isinstance(item, _Look) and item.is_behind), None)
        if behind is None:
            return made.cat(before, self._then(items, tail))
        look = items[behind]
        assert isinstance(look, _Look)
        inner = made.cat(made.everything, made.either(*(self._plain(sequence) for sequence in look.inner)))
        met = made.negated(inner) if look.is_negative else inner
        return self._behind(made.both(made.cat(before, self._plain(items[:behind])), met), items[behind + 1 :], tail)

    def _then(self, items: list[_Item], tail: int) -> int:
        """The texts that begin with `items` and end with `tail`."""
        made = self._made
        for item in reversed(items):
            match item:
                case _Anchor(is_end=True):
                    tail = made.both(made.empty, tail)
                case _Anchor():
                    raise UnknownPattern("it has a ^ in its midst")
                case _Look(is_behind=True):
                    raise UnknownPattern("it has a look-behind within another group")
                case _Look():
                    sequences = [self._then(self._without_begin(one), made.everything) for one in item.inner]
                    inner = made.either(*sequences)
                    tail = made.both(made.negated(inner) if item.is_negative else inner, tail)
                case _Group() if _has_conditions(item.inner):
                    tail = made.either(*(self._then(sequence, tail) for sequence in item.inner))
                case _:
                    tail = made.cat(self._one(item), tail)
        return tail

    @staticmethod
    def _without_begin(items: list[_Item]) -> list[_Item]:
        if items and items[0] == _Anchor(is_end=False):
            raise UnknownPattern("it has a ^ in its midst")
        return items

    def _plain(self, items: list[_Item]) -> int:
        """The texts of a sequence without conditions on what stands around it."""
        return self._made.cat(*map(self._one, items))

    def _one(self, item: _Item) -> int:
        made = self._made
        match item:
            case _Set():
                return made.chars(item.chars)
            case _Group():
                return made.either(*map(self._plain, item.inner))
            case _Repeat():
                return made.repeat(self._one(item.part), item.least, item.most)
        raise UnknownPattern("it has an anchor or a look-around within a repetition or a look-behind")


def _has_conditions(choice: _Choice) -> bool:
    """Whether an anchor or a look-around stands in it, but for those in repetitions."""
    return any(
        isinstance(item, _Look | _Anchor) or (isinstance(item, _Group) and _has_conditions(item.inner))
        for sequence in choice
        for item in sequence
    )
