"""Translates a Lark grammar into one regular expression, which can be the `pattern` of a string in a JSON schema.

A model writes the input of a custom tool as a string in JSON. llguidance enforces a pattern on the text that such a
string stands for, whatever is escaped in it, and so the grammar holds in every syntax of calls. Recursion at the
beginning or the end of a rule becomes repetition; recursion in its middle is followed to a depth.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

import orjson

MAX_PATTERN_CHARS = 16_000
MAX_TOKENS = 4_000  # of a grammar's source; to read and to translate them takes some 20 ms at most
MAX_NESTING = 64  # of parentheses
MAX_WORK = 200_000  # characters that are written for all levels together, and _VISIT for each part
_VISIT = 50
_LEVELS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24)  # of recursion in the middle of rules, of which the last that fits counts
_ENDLESS = 1_000  # the most repetitions that are written as a number

# What Lark's own library of terminals has.
_COMMON: Mapping[str, str] = {
    "DIGIT": "[0-9]", "HEXDIGIT": "[a-fA-F0-9]", "INT": "[0-9]+", "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": r"(?:[0-9]+\.[0-9]*|\.[0-9]+)",
    "FLOAT": r"(?:[0-9]+(?:\.[0-9]*)?[eE][+-]?[0-9]+|[0-9]+\.[0-9]*|\.[0-9]+)",
    "SIGNED_FLOAT": r"[+-]?(?:[0-9]+(?:\.[0-9]*)?[eE][+-]?[0-9]+|[0-9]+\.[0-9]*|\.[0-9]+)",
    "NUMBER": r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\[^\n])*"', "LCASE_LETTER": "[a-z]", "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]", "WORD": "[A-Za-z]+", "CNAME": "[_A-Za-z][_A-Za-z0-9]*", "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+", "CR": r"\r", "LF": r"\n", "NEWLINE": r"(?:\r?\n)+", "SH_COMMENT": r"#[^\n]*",
    "CPP_COMMENT": r"//[^\n]*", "SQL_COMMENT": r"--[^\n]*",
}  # fmt: skip

_TOKENS = re.compile(
    r"(?P<space>[ \t\r]+|(?://|\#)[^\n]*)"
    r"|(?P<newline>\n)"
    r'|(?P<text>"(?:\\.|[^"\\\n])*"i?)'
    r"|(?P<regex>/(?:\\.|[^/\\\n])+/[imslux]*)"
    r"|(?P<directive>%[a-z]+)"
    r"|(?P<arrow>->)|(?P<dots>\.\.)"
    r"|(?P<number>\d+)"
    r"|(?P<name>_?[A-Za-z][A-Za-z0-9_\-]*)"
    r"|(?P<mark>[:|()\[\]{}*+?~,.!])"
)
_HEAD = re.compile(r"[?!]*(_?[A-Za-z][A-Za-z0-9_\-]*)(?:\.-?\d+)?[ \t]*:(?!:)")
_META = re.compile(r"[\\.+*?()|\[\]{}^$#&\-~]")


class LarkError(ValueError):
    """A grammar cannot be translated; the message is the reason, as the end of a sentence."""


class _Text(NamedTuple):
    """A piece of a regular expression."""

    pattern: str


class _Name(NamedTuple):
    name: str


class _Sequence(NamedTuple):
    parts: tuple[_Node, ...]


class _Choice(NamedTuple):
    options: tuple[_Node, ...]


class _Repeat(NamedTuple):
    part: _Node
    least: int
    most: int | None


_Node: TypeAlias = "_Text | _Name | _Sequence | _Choice | _Repeat"


def pattern_of_lark(source: str) -> str:
    """The regular expression of all texts that match `source`, or of those up to some depth of recursion.

    Raises LarkError if the grammar is wrong, has what is not supported, or would be too long.
    """
    grammar = _Parser(source).read()
    if "start" not in grammar.rules:
        raise LarkError("it has no rule named start")
    writer = _Writer(grammar)
    pattern: str | None = None
    reason = LarkError("nothing matches it, or its recursion never ends")
    for level in _LEVELS if writer.is_recursive else _LEVELS[:1]:
        try:
            pattern = writer.write(level)
        except RecursionError as error:
            raise LarkError("its rules form too long a chain") from error
        except _TooLongError as error:
            reason = LarkError(str(error))
            break
    if pattern is None:
        raise reason
    return pattern


class _Grammar(NamedTuple):
    rules: Mapping[str, _Node]
    ignored: tuple[_Node, ...]


class _Parser:
    """Reads the source of one grammar."""

    def __init__(self, source: str) -> None:
        self._tokens = list(_scan(source))
        self._at = 0
        self._depth = 0

    def read(self) -> _Grammar:
        rules: dict[str, _Node] = {}
        ignored: list[_Node] = []
        while True:
            self._skip_newlines()
            kind, text = self._peek()
            if kind == "end":
                return _Grammar(rules, tuple(ignored))
            if kind == "head":
                self._at += 1
                if text in rules:
                    raise LarkError(f"it defines {text} twice")
                rules[text] = self._choice()
            elif text == "%import":
                self._at += 1
                rules |= self._imports()
            elif text == "%ignore":
                self._at += 1
                ignored.append(self._choice())
            else:
                raise LarkError(f"{_shown(text)} begins neither a rule nor a directive that is supported")
            kind, text = self._peek()
            if kind not in ("newline", "end", "head", "directive"):
                raise LarkError(f"{_shown(text)} is not expected there")

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at]

    def _take(self, text: str) -> bool:
        kind, found = self._peek()
        if found != text or kind in ("text", "regex"):
            return False
        self._at += 1
        return True

    def _skip_newlines(self) -> None:
        while self._peek()[0] == "newline":
            self._at += 1

    def _imports(self) -> dict[str, _Node]:
        path = [self._expect("name")]
        while self._take("."):
            if self._peek()[1] == "(":
                break
            path.append(self._expect("name"))
        if path[0] != "common":
            raise LarkError(f"it imports from {path[0]}; only common can be imported")
        if not self._take("("):
            name = path[-1]
            alias = self._expect("name") if self._take("->") else name
            return {alias: _common(name)}
        found = {}
        while not self._take(")"):
            name = self._expect("name")
            found[name] = _common(name)
            self._take(",")
        return found

    def _expect(self, kind: str) -> str:
        found, text = self._peek()
        if found != kind:
            raise LarkError(f"{_shown(text)} stands where a {kind} is expected")
        self._at += 1
        return text

    def _choice(self) -> _Node:
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise LarkError(f"its parentheses are nested deeper than {MAX_NESTING} levels")
        options = [self._sequence()]
        while self._goes_on_with_bar():
            options.append(self._sequence())
        self._depth -= 1
        return options[0] if len(options) == 1 else _Choice(tuple(options))

    def _goes_on_with_bar(self) -> bool:
        """Whether another option follows, perhaps in the next lines."""
        at = self._at
        self._skip_newlines()
        if self._take("|"):
            return True
        self._at = at
        return False

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        while True:
            kind, text = self._peek()
            if kind in ("text", "regex", "name") or text in ("(", "["):
                parts.append(self._repeated())
            elif kind == "newline" and self._depth > 1:  # within parentheses
                self._at += 1
            else:
                break
        if self._take("->"):  # the name of an option, which matters to parsers alone
            self._expect("name")
        return parts[0] if len(parts) == 1 else _Sequence(tuple(parts))

    def _repeated(self) -> _Node:
        part = self._atom()
        while True:
            if self._take("*"):
                part = _Repeat(part, 0, None)
            elif self._take("+"):
                part = _Repeat(part, 1, None)
            elif self._take("?"):
                part = _Repeat(part, 0, 1)
            elif self._take("~"):
                least = self._number()
                part = _Repeat(part, least, self._number() if self._take("..") else least)
            elif self._take("{"):
                part = self._braces(part)
            else:
                return part

    def _braces(self, part: _Node) -> _Node:
        least = 0 if self._peek()[1] == "," else self._number()
        most: int | None = least
        if self._take(","):
            most = None if self._peek()[1] == "}" else self._number()
        if not self._take("}"):
            raise LarkError(f"{_shown(self._peek()[1])} stands where }} is expected")
        return _Repeat(part, least, most)

    def _number(self) -> int:
        text = self._expect("number")
        if len(text) > 4 or int(text) > _ENDLESS:
            raise LarkError(f"it repeats something {text} times; at most {_ENDLESS} are allowed")
        return int(text)

    def _atom(self) -> _Node:
        kind, text = self._peek()
        self._at += 1
        if kind == "text":
            if self._take(".."):
                return _Text(f"[{_in_class(_decoded(text))}-{_in_class(_decoded(self._expect('text')))}]")
            escaped = _escaped(_decoded(text.removesuffix("i")))
            return _Text(f"(?i:{escaped})" if text.endswith("i") else escaped)
        if kind == "regex":
            return _Text(_regex(text))
        if kind == "name":
            return _Name(text)
        inner = self._choice()
        closing = ")" if text == "(" else "]"
        self._skip_newlines()
        if not self._take(closing):
            raise LarkError(f"{_shown(self._peek()[1])} stands where {closing} is expected")
        return inner if text == "(" else _Repeat(inner, 0, 1)


def _scan(source: str) -> Iterable[tuple[str, str]]:
    """The tokens of a grammar: their kinds and texts. A rule's name with its colon is a `head`."""
    at, num_tokens, is_line_start = 0, 0, True
    while at < len(source):
        head = _HEAD.match(source, at) if is_line_start else None
        if head is not None:
            yield "head", head[1]
            at, is_line_start = head.end(), False
        else:
            found = _TOKENS.match(source, at)
            if found is None:
                raise LarkError(f"{_shown(source[at : at + 20])} is not expected there")
            at = found.end()
            kind = found.lastgroup or ""
            if kind == "space":
                continue
            is_line_start = kind == "newline"
            yield kind, found[0]
        num_tokens += 1
        if num_tokens > MAX_TOKENS:
            raise LarkError(f"it has more than {MAX_TOKENS} tokens, the limit")
    yield "end", "its end"


def _common(name: str) -> _Node:
    if name not in _COMMON:
        raise LarkError(f"common.{name} cannot be imported; it has {', '.join(sorted(_COMMON))}")
    return _Text(_COMMON[name])


def _shown(text: str) -> str:
    return orjson.dumps(text[:40]).decode()


def _decoded(text: str) -> str:
    """The text that a string in quotes stands for."""
    body = re.sub(r"\\x([0-9a-fA-F]{2})", r"\\u00\1", text)
    try:
        decoded: str = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise LarkError(f"the string {text[:40]} has an escape that is not supported") from error
    return decoded


def _escaped(text: str) -> str:
    return _META.sub(r"\\\g<0>", text).replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")


def _in_class(text: str) -> str:
    if len(text) != 1:
        raise LarkError("the ends of a range must have one character each")
    return _escaped(text)


def _regex(text: str) -> str:
    """A regular expression between slashes as a part of a larger one."""
    body, _, flags = text[1:].rpartition("/")
    if set(flags) - set("ims"):
        raise LarkError(f"the flags {_shown(flags)} of a regular expression are not supported")
    body = body.replace(r"\/", "/")
    return f"(?{flags}:{body})" if flags else f"(?:{body})"


class _TooLongError(Exception):
    """The regular expression would be too long, or take too long to write; the message says which."""


class _Writer:
    """Writes the regular expressions of one grammar."""

    def __init__(self, grammar: _Grammar) -> None:
        self._rules = {name: _without_outer_recursion(name, node) for name, node in grammar.rules.items()}
        self._ignored = grammar.ignored
        self._cycles = _cycles(self._rules)
        self._written: dict[tuple[str, int], str | None] = {}
        self._between = ""
        self._work = 0

    @property
    def is_recursive(self) -> bool:
        return any(self._cycles.values())

    def write(self, level: int) -> str | None:
        """None where nothing matches within the level.

        Args:
            level: how often a rule may come back within itself.
        """
        self._written, self._between = {}, ""
        if self._ignored:
            ignored = self._of(_Choice(self._ignored), level, "IGNORED")
            self._between = f"(?:{ignored})*" if ignored else ""
            self._written = {}
        written = self._rule("start", level)
        return None if written is None else self._between + written

    def _rule(self, name: str, level: int) -> str | None:
        if name not in self._rules:
            raise LarkError(f"it does not define {name}")
        key = name, level
        if key not in self._written:
            self._written[key] = self._of(self._rules[name], level, name)
        return self._written[key]

    def _of(self, node: _Node, level: int, rule: str) -> str | None:
        """The expression of a part of `rule`; None where nothing matches within the level."""
        match node:
            case _Text(pattern):
                written: str | None = pattern if rule.isupper() else pattern + self._between
            case _Name(name):
                is_recursive = name in self._cycles.get(rule, ())
                written = None if is_recursive and level == 0 else self._rule(name, level - is_recursive)
                if written is not None:
                    written = f"(?:{written})" + (self._between if name.isupper() and not rule.isupper() else "")
            case _Sequence(parts):
                found = [self._of(part, level, rule) for part in parts]
                joined = [each for each in found if each is not None]
                written = "".join(joined) if len(joined) == len(found) else None
            case _Choice(options):
                found = [self._of(option, level, rule) for option in options]
                left = list(dict.fromkeys(each for each in found if each is not None))
                written = f"(?:{'|'.join(left)})" if left else None
            case _Repeat(part, least, most):
                inner = self._of(part, level, rule)
                if inner is None:
                    written = "" if least == 0 else None
                else:
                    written = f"(?:{inner}){_times(least, most)}"
        self._work += _VISIT + (0 if written is None else len(written))
        if self._work > MAX_WORK:
            raise _TooLongError("it takes too long to translate; it must be simpler")
        if written is not None and len(written) > MAX_PATTERN_CHARS:
            raise _TooLongError(f"as a regular expression it has more than {MAX_PATTERN_CHARS} characters, the limit")
        return written


def _times(least: int, most: int | None) -> str:
    simple = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, most))
    return simple or f"{{{least},{'' if most is None else most}}}"


def _cycles(rules: Mapping[str, _Node]) -> Mapping[str, frozenset[str]]:
    """Of each rule, the rules that it names and that lead back to it.

    Rules that lead to each other are found by Tarjan's algorithm, whose time grows with the length of the grammar.
    """
    named = {rule: tuple(dict.fromkeys(name for name in _names(node) if name in rules)) for rule, node in rules.items()}
    number: dict[str, int] = {}  # in the order of the visits
    lowest: dict[str, int] = {}
    group: dict[str, int] = {}  # the number of the first rule of those that lead to each other
    path: list[str] = []
    for root in rules:
        visits = [(root, iter(named[root]))] if root not in number else []
        while visits:
            rule, names = visits[-1]
            if rule not in number:
                number[rule] = lowest[rule] = len(number)
                path.append(rule)
            for name in names:
                if name not in number:
                    visits.append((name, iter(named[name])))
                    break
                if name not in group:
                    lowest[rule] = min(lowest[rule], lowest[name])
            else:
                visits.pop()
                if visits:
                    above = visits[-1][0]
                    lowest[above] = min(lowest[above], lowest[rule])
                if lowest[rule] == number[rule]:
                    while rule not in group:
                        group[path.pop()] = number[rule]
    return {rule: frozenset(name for name in named[rule] if group[name] == group[rule]) for rule in rules}


def _names(node: _Node) -> Iterable[str]:
    waiting = [node]
    while waiting:
        match waiting.pop():
            case _Name(name):
                yield name
            case _Sequence(parts) | _Choice(parts):
                waiting += parts
            case _Repeat(part):
                waiting.append(part)


def _without_outer_recursion(name: str, node: _Node) -> _Node:
    """The rule with repetitions instead of recursion at the beginning or the end of its options."""
    options = node.options if isinstance(node, _Choice) else (node,)
    itself = _Name(name)
    bases: list[_Node] = []
    before: list[_Node] = []
    behind: list[_Node] = []
    between: list[_Node] = []
    for option in options:
        parts = option.parts if isinstance(option, _Sequence) else (option,)
        inner = parts[parts[0] == itself : len(parts) - (parts[-1] == itself and len(parts) > 1)] if parts else ()
        if not parts or itself not in (parts[0], parts[-1]):
            bases.append(option)
        elif parts == (itself,) or not inner:
            continue
        elif parts[0] == itself and parts[-1] == itself:
            between.append(_Sequence(inner))
        else:
            (behind if parts[0] == itself else before).append(_Sequence(inner))
    if not bases or not (before or behind or between):
        return node
    base: _Node = _Choice(tuple(bases))
    begun = _Sequence((_Repeat(_Choice(tuple(before)), 0, None), base)) if before else base
    ends = [*behind, *(_Sequence((*each.parts, begun)) for each in between if isinstance(each, _Sequence))]
    return _Sequence((begun, _Repeat(_Choice(tuple(ends)), 0, None))) if ends else begun
