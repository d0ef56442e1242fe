"""Tells grammars that are certainly or probably quick to compile from those that may take seconds."""

from __future__ import annotations

import re
from collections.abc import Mapping

from server.protocol.structured_outputs import Grammar, GrammarKind

# Characters of source up to which a grammar of each kind is expected to take some milliseconds. A choice is a list of
# texts, whatever its size.
_SIMPLE_CHARS: Mapping[GrammarKind, int] = {
    GrammarKind.JSON_SCHEMA: 32 << 10,
    GrammarKind.REGEX: 1 << 10,
    GrammarKind.CHOICE: 64 << 10,
    GrammarKind.LARK: 4 << 10,
    GrammarKind.CALLS: 64 << 10,
}
# An automaton of remainders, and intersections; a schema within a Lark grammar may have its keywords in escapes.
_COSTLY = re.compile(r"multipleOf")
_COSTLY_IN_LARK = re.compile(r"%json|[&~]")


def is_simple(grammar: Grammar) -> bool:
    """Whether a grammar is expected to compile within milliseconds; a wrong guess costs a short attempt."""
    if len(grammar.source) > _SIMPLE_CHARS[grammar.kind]:
        return False
    match grammar.kind:
        case GrammarKind.CHOICE:
            return True
        case GrammarKind.LARK:
            return _COSTLY_IN_LARK.search(grammar.source) is None
        case _:
            return _COSTLY.search(grammar.source) is None
