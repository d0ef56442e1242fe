"""Regular expressions as sets of texts that can be intersected and complemented, which look-arounds stand for.

A text is a sequence of characters of Unicode; what a text must match lies between `Expressions.everything` around it.
Expressions are numbers, so that equal ones are the same. `parse` reads the syntax that llguidance and JSON Schema have
in common; what they read otherwise is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

Interval: TypeAlias = tuple[int, int]  # of characters, both ends included
Characters: TypeAlias = tuple[Interval, ...]  # ascending, not adjacent

MAX_EXPRESSIONS = 20_000  # that are made for one schema's pattern
_LAST = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)
_DIGITS: Characters = ((48, 57),)
_WORD: Characters = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACE: Characters = (
    (9, 13), (32, 32), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029),
    (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000),
)  # fmt: skip


class UnknownPattern(ValueError):
    """A pattern has a construct that is not known here, or is too large."""


class Expression(NamedTuple):
    """`kind` is one of: none, empty, chars, cat, repeat, or, and, not."""

    kind: str
    parts: tuple[int, ...] = ()
    chars: Characters = ()
    least: int = 0
    most: int | None = None


class Expressions:
    """Expressions that share their parts."""

    def __init__(self) -> None:
        self._numbers: dict[Expression, int] = {}
        self.all: list[Expression] = []
        self._is_nullable: list[bool] = []
        self._derivatives: dict[tuple[int, int], int] = {}
        self.none = self._make(Expression("none"))
        self.empty = self._make(Expression("empty"))
        self.everything = self.negated(self.none)
        self.any_char = self.chars(((0, _LAST),))

    def __getitem__(self, number: int) -> Expression:
        return self.all[number]

    def is_nullable(self, number: int) -> bool:
        """Whether the empty text matches."""
        return self._is_nullable[number]

    def chars(self, chars: Sequence[Interval]) -> int:
        normal = union(chars)
        return self._make(Expression("chars", chars=normal)) if normal else self.none

    def cat(self, *parts: int) -> int:
        flat: list[int] = []
        for part in parts:
            while self.all[part].kind == "cat":
                first, part = self.all[part].parts
                flat.append(first)
            flat.append(part)
        if self.none in flat:
            return self.none
        made = self.empty
        for part in reversed(flat):
            begins = self.all[made].parts[0] if self.all[made].kind == "cat" else made
            if part == self.empty or (part == self.everything == begins):
                continue
            made = part if made == self.empty else self._make(Expression("cat", (part, made)))
        return made

    def repeat(self, part: int, least: int, most: int | None) -> int:
        if most == 0 or part == self.empty:
            return self.empty
        if part == self.none:
            return self.none if least else self.empty
        if (least, most) == (1, 1):
            return part
        if part == self.any_char and least == 0 and most is None:
            return self.everything
        if least and self.is_nullable(part):
            least = 0
        return self._make(Expression("repeat", (part,), least=least, most=most))

    def either(self, *parts: int) -> int:
        flat = self._flat("or", parts) - {self.none}
        if self.everything in flat:
            return self.everything
        sets = [part for part in flat if self.all[part].kind == "chars"]
        if len(sets) > 1:
            flat = flat.difference(sets) | {self.chars([each for part in sets for each in self.all[part].chars])}
        return self._joined("or", flat, self.none)

    def both(self, *parts: int) -> int:
        flat = self._flat("and", parts) - {self.everything}
        if self.none in flat:
            return self.none
        if self.empty in flat:
            return self.empty if all(map(self.is_nullable, flat)) else self.none
        return self._joined("and", flat, self.everything)

    def negated(self, part: int) -> int:
        expression = self.all[part]
        return expression.parts[0] if expression.kind == "not" else self._make(Expression("not", (part,)))

    def derivative(self, number: int, char: int) -> int:
        """What may follow `char` in texts that match."""
        known = self._derivatives.get((number, char))
        if known is None:
            known = self._derivatives[number, char] = self._derive(self.all[number], char)
        return known

    def matches(self, number: int, text: str) -> bool:
        for char in text:
            number = self.derivative(number, ord(char))
        return self.is_nullable(number)

    def _derive(self, of: Expression, char: int) -> int:
        match of.kind:
            case "none" | "empty":
                return self.none
            case "chars":
                return self.empty if any(low <= char <= high for low, high in of.chars) else self.none
            case "cat":
                first, rest = of.parts
                made = self.cat(self.derivative(first, char), rest)
                return self.either(made, self.derivative(rest, char)) if self.is_nullable(first) else made
            case "repeat":
                most = None if of.most is None else of.most - 1
                rest = self.repeat(of.parts[0], max(0, of.least - 1), most)
                return self.cat(self.derivative(of.parts[0], char), rest)
            case "or":
                return self.either(*(self.derivative(part, char) for part in of.parts))
            case "and":
                return self.both(*(self.derivative(part, char) for part in of.parts))
        return self.negated(self.derivative(of.parts[0], char))

    def _flat(self, kind: str, parts: Sequence[int]) -> set[int]:
        flat: set[int] = set()
        for part in parts:
            expression = self.all[part]
            flat.update(expression.parts if expression.kind == kind else (part,))
        return flat

    def _joined(self, kind: str, parts: set[int], without: int) -> int:
        if len(parts) < 2:
            return next(iter(parts), without)
        return self._make(Expression(kind, tuple(sorted(parts))))

    def _make(self, expression: Expression) -> int:
        number = self._numbers.get(expression)
        if number is None:
            number = self._numbers[expression] = len(self.all)
            if number > MAX_EXPRESSIONS:
                raise UnknownPattern("it has too many states")
            self.all.append(expression)
            parts = [self._is_nullable[part] for part in expression.parts]
            match expression.kind:
                case "empty":
                    is_nullable = True
                case "cat" | "and":
                    is_nullable = all(parts)
                case "or":
                    is_nullable = any(parts)
                case "not":
                    is_nullable = not parts[0]
                case "repeat":
                    is_nullable = expression.least == 0 or parts[0]
                case _:
                    is_nullable = False
            self._is_nullable.append(is_nullable)
        return number


def union(chars: Sequence[Interval]) -> Characters:
    """Characters without surrogates, which are none."""
    joined: list[Interval] = []
    for low, high in sorted(chars):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], high))
        else:
            joined.append((low, high))
    cut: list[Interval] = []
    for low, high in joined:
        if low < _SURROGATES[0]:
            cut.append((low, min(high, _SURROGATES[0] - 1)))
        if high > _SURROGATES[1]:
            cut.append((max(low, _SURROGATES[1] + 1), high))
    return tuple(cut)


def complement(chars: Sequence[Interval]) -> Characters:
    left: list[Interval] = []
    begin = 0
    for low, high in union(chars):
        if low > begin:
            left.append((begin, low - 1))
        begin = high + 1
    if begin <= _LAST:
        left.append((begin, _LAST))
    return union(left)


CLASSES = {
    "d": _DIGITS, "w": _WORD, "s": _SPACE,
    "D": complement(_DIGITS), "W": complement(_WORD), "S": complement(_SPACE),
}  # fmt: skip
ANY_BUT_LINE_END = complement(((10, 10),))
