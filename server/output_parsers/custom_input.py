"""Reads the input of a custom tool from the arguments of its call, while they come."""

from __future__ import annotations

import json
import re

import orjson

from server.protocol.custom_tools import INPUT

_BEGIN = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
_PLAIN = re.compile(r'[^"\\]*')
_MAX_HEAD = 64  # characters before the input's own, white space included


class CustomInputReader:
    """Turns `{"input": "…"}`, which comes in pieces, into the text that the string stands for.

    Arguments of another form are known at their end alone: then the only string among them is the input, or their text.
    """

    def __init__(self) -> None:
        self._raw: list[str] = []
        self._head: str | None = ""  # None: the string has begun
        self._escape = ""  # that has not come to its end
        self._has_ended = False

    def feed(self, text: str) -> str:
        """The part of the input that has become certain."""
        if self._has_ended:
            return ""
        if self._head is None:
            return self._decode(text)
        self._raw.append(text)
        if len(self._head) <= _MAX_HEAD:
            self._head += text
            begun = _BEGIN.match(self._head)
            if begun is not None:
                rest, self._head = self._head[begun.end() :], None
                return self._decode(rest)
        return ""

    def finish(self) -> str:
        """The rest of the input, once no more can come."""
        if self._head is None:
            return ""
        raw = "".join(self._raw)
        try:
            read = orjson.loads(raw)
        except orjson.JSONDecodeError:
            return raw if raw.strip() != "{" else ""
        if isinstance(read, dict):
            texts = [part for part in read.values() if isinstance(part, str)]
            if isinstance(read.get(INPUT), str):
                return str(read[INPUT])
            if len(texts) == 1:
                return texts[0]
            return raw if read else ""
        return raw

    def _decode(self, text: str) -> str:
        """Text within the string, up to its end."""
        pieces: list[str] = []
        text, self._escape = self._escape + text, ""
        at = 0
        while at < len(text):
            plain = _PLAIN.match(text, at)
            assert plain is not None
            pieces.append(plain[0])
            at = plain.end()
            if at == len(text):
                break
            if text[at] == '"':
                self._has_ended = True
                break
            size = _size_of_escape(text, at)
            if size is None:
                self._escape = text[at:]
                break
            pieces.append(_decoded(text[at : at + size]))
            at += size
        return "".join(pieces)


def _size_of_escape(text: str, at: int) -> int | None:
    """The characters of the escape that begins at `at`, with the second half of a pair; None where it goes on."""
    if len(text) < at + 2:
        return None
    if text[at + 1] != "u":
        return 2
    if len(text) < at + 6:
        return None
    if text[at + 2 : at + 4].lower() not in ("d8", "d9", "da", "db"):
        return 6
    if len(text) < at + 8 and "\\u".startswith(text[at + 6 :]):
        return None
    if text[at + 6 : at + 8] != "\\u":
        return 6
    return 12 if len(text) >= at + 12 else None


def _decoded(escape: str) -> str:
    try:
        decoded: str = json.loads(f'"{escape}"')
    except ValueError:
        return escape[1:] if len(escape) == 2 else escape
    return decoded.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
