"""Writes expressions as regular expressions without intersections and complements, which JSON schemas do not have."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

from server.structured_output.schemas.pattern_parser import parse
from server.structured_output.schemas.regular_expression import (
    Characters,
    Expressions,
    UnknownPattern,
    complement,
)

MAX_STATES = 100  # of an automaton
MAX_CHARS = 4000  # of a pattern
MAX_OVERLAPPING = 4  # patterns
_ANYTHING = "(?s:.)"


class _Text(NamedTuple):
    """A regular expression; `binds` says how tightly: 0 for a choice, 1 for a sequence, 2 for one item."""

    text: str
    binds: int = 2

    def at(self, binds: int) -> str:
        return self.text if self.binds >= binds else f"(?:{self.text})"


_EMPTY = _Text("", 1)


def without_look_around(pattern: str) -> list[str]:
    """Patterns without look-arounds that a text matches together where it matches `pattern`. Raises UnknownPattern."""
    made = Expressions()
    return _patterns(made, parse(pattern, made))


def negated_patterns(pattern: str) -> list[str]:
    """Patterns that a text matches together where it does not match `pattern`. Raises UnknownPattern."""
    made = Expressions()
    return _patterns(made, made.negated(parse(pattern, made)))


def other_texts(texts: list[str]) -> list[str]:
    """Patterns of all texts but some. Raises UnknownPattern where these are too many."""
    made = Expressions()
    return _patterns(made, made.negated(made.either(*(_literal(made, text) for text in texts))))


def pattern_without(pattern: str, texts: list[str]) -> str:
    """A pattern that matches what `pattern` does, but for some texts. Raises UnknownPattern."""
    made = Expressions()
    number = made.both(parse(pattern, made), made.negated(made.either(*(_literal(made, text) for text in texts))))
    return _pattern(made, number)


def disjoint_patterns(patterns: list[str]) -> list[tuple[str, list[int]]]:
    """Patterns no two of which match the same text, each with the places of those of `patterns` that it stands for.

    Raises UnknownPattern.
    """
    if len(patterns) > MAX_OVERLAPPING:
        raise UnknownPattern("there are too many patterns")
    made = Expressions()
    numbers = [parse(pattern, made) for pattern in patterns]
    found = []
    for size in range(1, len(patterns) + 1):
        for places in combinations(range(len(patterns)), size):
            parts = [number if at in places else made.negated(number) for at, number in enumerate(numbers)]
            number = made.both(*parts)
            if not _Automaton(made, number).is_empty:
                found.append((_pattern(made, number), [*places]))
    return found


def is_match(pattern: str, text: str) -> bool:
    """Whether `pattern` is found in `text`. Raises UnknownPattern."""
    made = Expressions()
    return made.matches(parse(pattern, made), text)


def _literal(made: Expressions, text: str) -> int:
    return made.cat(*(made.chars([(ord(char), ord(char))]) for char in text))


def _patterns(made: Expressions, number: int) -> list[str]:
    expression = made[number]
    parts = expression.parts if expression.kind == "and" else (number,)
    return [_pattern(made, part) for part in parts if part != made.everything]


def _pattern(made: Expressions, number: int) -> str:
    written = _written(made, number) if _is_plain(made, number) else _Automaton(made, number).pattern()
    if len(written.text) > MAX_CHARS:
        raise UnknownPattern("without look-arounds it is too long")
    return f"^(?:{written.text})$"


def _is_plain(made: Expressions, number: int) -> bool:
    expression = made[number]
    if number == made.everything:
        return True
    return expression.kind not in ("and", "not", "none") and all(_is_plain(made, part) for part in expression.parts)


def _written(made: Expressions, number: int) -> _Text:
    expression = made[number]
    if number == made.everything:
        return _Text(f"{_ANYTHING}*")
    match expression.kind:
        case "empty":
            return _EMPTY
        case "chars":
            return _chars(expression.chars)
        case "cat":
            first, rest = (_written(made, part) for part in expression.parts)
            return _cat(first, rest)
        case "or":
            return _either([_written(made, part) for part in expression.parts])
    part = _written(made, expression.parts[0])
    return _repeated(part, expression.least, expression.most)


def _repeated(part: _Text, least: int, most: int | None) -> _Text:
    if not part.text:
        return part
    counts = {(0, None): "*", (1, None): "+", (0, 1): "?"}
    count = counts.get((least, most)) or f"{{{least},{'' if most is None else most}}}"
    is_repeated = part.text[-1] in "*+?}" and not part.text.endswith(("\\*", "\\+", "\\?", "\\}"))
    text = f"(?:{part.text})" if is_repeated else part.at(2)
    return _Text(text + count)


def _cat(first: _Text, rest: _Text) -> _Text:
    if not first.text or not rest.text:
        return first if first.text else rest
    return _Text(first.at(1) + rest.at(1), 1)


def _either(parts: list[_Text]) -> _Text:
    kept = list(dict.fromkeys(part for part in parts if part.text))
    has_empty = len(kept) < len(set(parts))
    if not kept:
        return _EMPTY
    joined = kept[0] if len(kept) == 1 else _Text("|".join(part.text for part in kept), 0)
    return _repeated(joined, 0, 1) if has_empty else joined


def _chars(chars: Characters) -> _Text:
    if chars == complement(()):
        return _Text(_ANYTHING)
    if len(chars) == 1 and chars[0][0] == chars[0][1]:
        return _Text(_char(chars[0][0]))
    others = complement(chars)
    is_shorter = len(others) < len(chars)
    ranges = others if is_shorter else chars
    inner = "".join(_char(low) if low == high else f"{_char(low)}-{_char(high)}" for low, high in ranges)
    return _Text(f"[{'^' if is_shorter else ''}{inner}]")


def _char(code: int) -> str:
    char = chr(code)
    return char if char.isascii() and char.isalnum() else f"\\x{{{code:x}}}"


class _Automaton:
    """The states that an expression comes to, each with what may follow it."""

    def __init__(self, made: Expressions, number: int) -> None:
        self._made = made
        self._chars = list(_classes(made, number))
        self._states: dict[int, int] = {number: 0}
        self._moves: list[list[int]] = []  # of each state, for each class of characters
        waiting = [number]
        for state in waiting:
            moves = []
            for chars in self._chars:
                to = made.derivative(state, chars[0][0])
                if to not in self._states:
                    if len(self._states) >= MAX_STATES:
                        raise UnknownPattern("it has too many states")
                    self._states[to] = len(self._states)
                    waiting.append(to)
                moves.append(self._states[to])
            self._moves.append(moves)
        self._is_end = [made.is_nullable(state) for state in self._states]

    @property
    def is_empty(self) -> bool:
        """Whether no text matches."""
        return not any(self._is_end)

    def pattern(self) -> _Text:
        """What all ways from the first state to an end have written on them, by taking one state out after another."""
        group = self._equal_states()
        begin, end = -1, -2
        ways: dict[tuple[int, int], _Text] = {(begin, group[0]): _EMPTY}
        for state, moves in enumerate(self._moves):
            if group[state] != state:  # it is equal to an earlier one
                continue
            sets: dict[int, list[tuple[int, int]]] = {}
            for chars, to in zip(self._chars, moves, strict=True):
                sets.setdefault(group[to], []).extend(chars)
            for to, chars_to in sets.items():
                made = self._made.chars(chars_to)
                ways[state, to] = _chars(self._made[made].chars)
            if self._is_end[state]:
                ways[state, end] = _EMPTY
        left = {state for state in group if state == group[state]}
        while left:
            self._take_out(min(left, key=lambda state: (_weight(ways, state), state)), ways, left)
        if (begin, end) not in ways:
            raise UnknownPattern("nothing matches it")
        return ways[begin, end]

    def _take_out(self, state: int, ways: dict[tuple[int, int], _Text], left: set[int]) -> None:
        left.remove(state)
        loop = ways.pop((state, state), None)
        inner = _EMPTY if loop is None else _repeated(loop, 0, None)
        before = [(key[0], text) for key, text in ways.items() if key[1] == state]
        behind = [(key[1], text) for key, text in ways.items() if key[0] == state]
        for key in [key for key in ways if state in key]:
            del ways[key]
        for begin, first in before:
            for end, last in behind:
                way = _cat(_cat(first, inner), last)
                known = ways.get((begin, end))
                ways[begin, end] = way if known is None else _either([known, way])
                if len(ways[begin, end].text) > MAX_CHARS:
                    raise UnknownPattern("without look-arounds it is too long")

    def _equal_states(self) -> dict[int, int]:
        """The first state that each state is equal to, mostly itself."""
        block = [int(is_end) for is_end in self._is_end]
        while True:
            keys = [(block[state], *(block[to] for to in moves)) for state, moves in enumerate(self._moves)]
            numbers: dict[tuple[int, ...], int] = {}
            refined = [numbers.setdefault(key, len(numbers)) for key in keys]
            if len(numbers) == len(set(block)):
                break
            block = refined
        first: dict[int, int] = {}
        for state, number in enumerate(block):
            first.setdefault(number, state)
        return {state: first[number] for state, number in enumerate(block)}


def _weight(ways: dict[tuple[int, int], _Text], state: int) -> int:
    num_in = sum(key[1] == state != key[0] for key in ways)
    num_out = sum(key[0] == state != key[1] for key in ways)
    return num_in * num_out * (1 + sum(len(text.text) for key, text in ways.items() if state in key))


def _classes(made: Expressions, number: int) -> Iterator[Characters]:
    """The characters of Unicode in classes, between whose members no set in an expression tells."""
    seen: set[int] = set()
    waiting = [number]
    sets: set[Characters] = set()
    while waiting:
        at = waiting.pop()
        if at not in seen:
            seen.add(at)
            waiting += made[at].parts
            if made[at].kind == "chars":
                sets.add(made[at].chars)
    cuts = sorted({0, *(cut for chars in sets for low, high in chars for cut in (low, high + 1))})
    groups: dict[tuple[bool, ...], list[tuple[int, int]]] = {}
    for low, after in zip(cuts, [*cuts[1:], 0x110000], strict=True):
        if low < after:
            key = tuple(any(begin <= low <= end for begin, end in chars) for chars in sorted(sets))
            groups.setdefault(key, []).append((low, after - 1))
    for group in groups.values():
        chars = complement(complement(group))
        if chars:
            yield chars
