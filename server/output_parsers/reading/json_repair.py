"""Makes valid JSON of the JSON that a model writes, while it is written: what is valid stays as it is."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Generator

MAX_DEPTH = 200  # of objects and lists; what reads them calls itself at each level
_SPACE = " \t\r\n"
_LITERALS = {
    "true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null",
    "undefined": "null", "NaN": "null", "Infinity": "null", "-Infinity": "null", "+Infinity": "null",
}  # fmt: skip
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_LOOSE_NUMBER = re.compile(r"[+-]?0*(?P<whole>[0-9]*)(?:\.(?P<fraction>[0-9]*))?(?P<exponent>[eE][+-]?[0-9]+)?")
# What begins a string, and what ends it then: JSON's quotation mark, Python's, and typographic ones.
CLOSING_QUOTES = {'"': '"', "'": "'", "\u201c": "\u201d", "\u201d": "\u201d", "\u201e": "\u201c\u201d"}
_AFTER_NO_COMMA = frozenset("{[").union(CLOSING_QUOTES)  # what begins a value or a key where its comma is forgotten
_ESCAPES = frozenset('"\\/bfnrt')
_MAX_WORD_CHARS = 1024  # of a number or a literal
_MAX_AHEAD_CHARS = 128  # behind a quotation mark, that are looked at to see whether it ends its string
_CONTROLS = {chr(code): json.dumps(chr(code))[1:-1] for code in range(32)}


class NotJson(ValueError):
    """The text cannot become JSON any more."""


class JsonRepair:
    """Reads one value character by character and returns the text of valid JSON for it.

    It repairs raw control characters in strings, unknown escapes, half surrogates, strings in single or typographic
    quotes, quotes within strings where what follows shows that they end none, keys without quotes, commas that are
    missing or too many, brackets that are forgotten or of the wrong kind, Python's literals, and numbers that JSON does
    not have. A number that is none, or that no double can hold, becomes null.
    """

    def __init__(self) -> None:
        self.is_done = False  # the value has ended; that of a number or literal ends with the character behind it
        self._closers: list[str] = []  # of the open brackets
        self._expects = "value"  # "value", "item" (a value or the end), "key", "first key", "colon" or "next"
        self._quote = ""  # of the string that is being read
        self._escape = ""  # what has come of an escape, with its backslash
        self._high = ""  # an escape of a high surrogate, whose other half must follow
        self._word = ""  # what has come of a number or a literal
        self._held: list[str] = []  # a comma, and the white space behind it
        self._ahead: list[str] = []  # a quotation mark that may end its string, and what follows it
        self._next_key: Generator[None, str, bool] | None = None  # finds out whether it does
        self._unsaid = ""  # text that was certain when the character behind it was found to be no JSON

    @property
    def takes_space(self) -> bool:
        """Whether white space belongs to the value here."""
        return bool(self._closers or self._quote or self._word)

    def feed(self, char: str) -> str:
        """The text that has become certain with `char`. Not called after the end.

        Raises NotJson if the text cannot become a value.
        """
        if self._ahead:
            return self._behind_quote(char)
        if self._quote:
            return self._string(char)
        if self._word:
            if char not in ',:]}{["<' and char not in _SPACE:
                self._word += char
                if len(self._word) > _MAX_WORD_CHARS:
                    raise NotJson
                return ""
            if self._expects == "key":
                text, self._expects = json.dumps(self._word), "colon"
            else:
                text = _literal(self._word)
                self._value_ended()
            self._word = ""
            if self.is_done:
                return text
            self._unsaid = text
            text += self.feed(char)
            self._unsaid = ""
            return text
        return self._between(char)

    def end(self) -> str:
        """The text of a number or literal that ends with the text. Raises NotJson if the value is incomplete."""
        if self.is_done:
            return ""
        if not self._word or self._closers:
            raise NotJson
        self.is_done = True
        return _literal(self._word)

    @property
    def closers(self) -> str:
        """What closes the open brackets, where the value may end; else nothing."""
        is_between = not (self._quote or self._word or self._held)
        may_end = is_between and self._expects in ("next", "item", "first key")
        return self._unsaid + "".join(reversed(self._closers)) if may_end else ""

    @property
    def pending(self) -> str:
        """What has come and is not certain yet, as the model has written it; for a value that is cut off."""
        return "".join((self._unsaid, *self._held, self._word, self._high, self._escape, *self._ahead))

    def _between(self, char: str) -> str:
        """Reads what stands outside of strings, numbers and literals."""
        if char in _SPACE:
            if self._held:
                self._held.append(char)
                return ""
            return char
        expects = self._expects
        if char in "]}":
            return self._close(char)
        held, self._held = "".join(self._held), []
        if expects == "next":
            if char not in _AFTER_NO_COMMA and char != ",":
                raise NotJson
            self._held = [","]
            self._expects = "key" if self._closers[-1] == "}" else "value"
            return "" if char == "," else self._between(char)
        if expects == "colon":
            if char != ":":
                raise NotJson
            self._expects = "value"
            return char
        if char in CLOSING_QUOTES:
            self._quote = CLOSING_QUOTES[char]
            return held + '"'
        if expects in ("key", "first key"):
            if not (char.isalpha() or char in "_$"):
                raise NotJson
            self._word, self._expects = char, "key"
            return held
        if char in "{[":
            self._closers.append("}" if char == "{" else "]")
            if len(self._closers) > MAX_DEPTH:
                raise NotJson
            self._expects = "first key" if char == "{" else "item"
            return held + char
        if char not in "-+.0123456789" and not char.isalpha():
            raise NotJson
        self._word = char
        return held

    def _close(self, char: str) -> str:
        is_trailing = bool(self._held)
        may_close = self._expects in ("next", "item", "first key") or is_trailing
        if not self._closers or not may_close:
            raise NotJson
        space, self._held = "".join(self._held[1:]), []
        # Where that is another bracket's, the ones within that bracket have been forgotten, or this one is mistaken.
        depth = next((at for at, closer in enumerate(reversed(self._closers), start=1) if closer == char), 1)
        closed = "".join(reversed(self._closers[-depth:]))
        del self._closers[-depth:]
        self._value_ended()
        return space + closed

    def _value_ended(self) -> bool:
        self._expects = "next"
        self.is_done = not self._closers
        return self.is_done

    def _string(self, char: str) -> str:
        if self._escape:
            return self._escaped(char)
        if char == "\\":
            self._escape = char
            return ""
        lone, self._high = "\\ufffd" if self._high else "", ""
        if char in self._quote:
            if self._expects in ("key", "first key"):
                self._quote, self._expects = "", "colon"
                return lone + '"'
            if not self._closers:
                self._quote = ""
                self._value_ended()
                return lone + '"'
            self._ahead = [char]
            self._next_key = _is_end(in_list=self._closers[-1] == "]")
            next(self._next_key)
            return lone
        if char == '"':
            return lone + '\\"'
        if "\ud800" <= char <= "\udfff":
            return lone + "\\ufffd"
        return lone + _CONTROLS.get(char, char)

    def _behind_quote(self, char: str) -> str:
        """Reads what follows a quotation mark, up to where it shows whether the mark ends its string."""
        ahead, next_key = self._ahead, self._next_key
        assert next_key is not None
        ahead.append(char)
        try:
            next_key.send(char)
            if len(ahead) <= _MAX_AHEAD_CHARS:
                return ""
            is_end = True
        except StopIteration as found:
            is_end = found.value
        self._ahead, self._next_key = [], None
        if is_end:
            self._quote, certain = "", '"'
            self._value_ended()
        else:
            certain = '\\"' if ahead[0] == '"' else ahead[0]
        for again in ahead[1:]:
            try:
                if self.is_done:  # what follows a whole value has been taken for a part of its last text
                    raise NotJson
                certain += self.feed(again)
            except NotJson:
                self._unsaid = certain + self._unsaid
                raise
        return certain

    def _escaped(self, char: str) -> str:
        escape = self._escape + char
        if escape == "\\u" or (len(escape) > 2 and escape[1] == "u" and len(escape) < 6 and _is_hex(char)):
            self._escape = escape
            return ""
        self._escape = ""
        if escape[1] == "u" and len(escape) == 6 and _is_hex(char):
            return self._unicode(escape)
        lone, self._high = "\\ufffd" if self._high else "", ""
        if escape[1] == "u":  # it has too few digits
            return lone + "\\\\" + escape[1:-1] + self._string(char)
        if char in _ESCAPES:
            return lone + escape
        return lone + ("'" if char == "'" else "\\\\" + self._string(char))

    def _unicode(self, escape: str) -> str:
        code, high = int(escape[2:], 16), self._high
        self._high = ""
        if high and 0xDC00 <= code <= 0xDFFF:
            return high + escape
        lone = "\\ufffd" if high else ""
        if 0xD800 <= code <= 0xDBFF:
            self._high = escape
            return lone
        return lone + ("\\ufffd" if 0xDC00 <= code <= 0xDFFF else escape)


def _is_end(*, in_list: bool) -> Generator[None, str, bool]:
    """Whether a quotation mark ends a string in a list or a mapping, by the characters that follow it.

    A value's end, or the next value or key follows the end of a string. A mark before anything else is a part of it.
    """
    while (char := (yield)) in _SPACE:
        pass
    if char in "]}<":  # a tag follows arguments whose braces are forgotten
        return True
    if in_list:
        return char == "," or char in _AFTER_NO_COMMA
    if char == ",":
        while (char := (yield)) in _SPACE:
            pass
        if char in "]},":
            return True
    closing = CLOSING_QUOTES.get(char)
    if closing is None:
        if not (char.isalpha() or char in "_$"):
            return False
        while char not in _SPACE and char != ":":
            if not (char.isalnum() or char in "_$-."):
                return False
            char = yield
    else:
        while (char := (yield)) not in closing:
            if char == "\\":
                yield
        char = yield
    while char in _SPACE:
        char = yield
    return char == ":"


def repaired(text: str) -> str:
    """Valid JSON for a whole value. Raises NotJson if it is none, or more than one."""
    repair = JsonRepair()
    written: list[str] = []
    for position, char in enumerate(text):
        if repair.is_done:
            if text[position:].strip():
                raise NotJson
            break
        written.append(repair.feed(char))
    written.append(repair.end())
    return "".join(written).strip()


def is_whole_object(text: str) -> bool:
    """Whether this is the JSON text of an object, and not the beginning of one."""
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _is_hex(char: str) -> bool:
    return char in "0123456789abcdefABCDEF"


def _literal(word: str) -> str:
    known = _LITERALS.get(word)
    if known is not None:
        return known
    if not _NUMBER.fullmatch(word):
        loose = _LOOSE_NUMBER.fullmatch(word)
        if loose is None or not (loose["whole"] or loose["fraction"] or "0" in word):
            raise NotJson
        fraction = f".{loose['fraction']}" if loose["fraction"] else ""
        word = f"{'-' if word[0] == '-' else ''}{loose['whole'] or '0'}{fraction}{loose['exponent'] or ''}"
    return word if math.isfinite(float(word)) else "null"
