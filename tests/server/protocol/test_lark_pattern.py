"""The regular expressions that Lark grammars become."""

from __future__ import annotations

import re

import pytest

from server.protocol.lark_pattern import LarkError, pattern_of_lark

PATCH = r"""
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?
hunk: add_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
update_hunk: "*** Update File: " filename LF change?
filename: /(.+)/
add_line: "+" /(.*)/ LF -> line
change: (change_context | change_line)+
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
%import common.LF
"""
SUM = """
start: expr
expr: term (" + " term)* -> add
    | term
term: INT | "(" expr ")"
%import common.INT
"""
JSON = r"""
?start: value
?value: object | array | STRING | "true"
array: "[" [value ("," value)*] "]"
object: "{" [pair ("," pair)*] "}"
pair: STRING ":" value
%import common.ESCAPED_STRING -> STRING
%import common.WS
%ignore WS
"""


@pytest.mark.parametrize(
    ("grammar", "matching", "others"),
    [
        (PATCH, ["*** Begin Patch\n*** Add File: a\n+x\n*** End Patch"], ["hello", "*** Begin Patch\n*** End Patch"]),
        (SUM, ["4", "4 + 5", "(4 + (5))", "((6))"], ["4 + ", "(4", ""]),
        (JSON, ['{"a": [true, "b"]}', " [ ] "], ["{", '{"a"}']),
        ('start: "a"~2..3 "b"{2} [C]\nC: "c"i', ["aabb", "aaabbC"], ["abb", "aabbb"]),
        ('start: "a".."c" /\\/+/', ["a/", "c//"], ["d/", "a"]),
        ('start: list\nlist: list "," item | item\nitem: /[a-z]+/', ["a", "a,b,c"], ["a,", ","]),
        ('start: e\ne: e "+" e | "-" e | "1"', ["1", "1+1+1", "-1+--1"], ["+1", "1+"]),
        ('start: "\\n\\"\\\\."', ['\n"\\.'], ['\n"\\x']),
        ("// a note\nstart: a # another\na.2: b\n  | c\nb: \"b\"\n!c: \"c\"", ["b", "c"], ["a"]),
    ],
)  # fmt: skip
def test_the_same_texts_match(grammar: str, matching: list[str], others: list[str]) -> None:
    pattern = re.compile(pattern_of_lark(grammar))
    assert [text for text in matching if pattern.fullmatch(text) is None] == []
    assert [text for text in others if pattern.fullmatch(text) is not None] == []


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ('a: "x"', "no rule named start"),
        ("start: b", "does not define b"),
        ('start: start "x"', "nothing matches"),
        ('start: "a', "not expected"),
        ("start: (", "is expected"),
        ("start: %json {}", "neither a rule nor a directive"),
        ("%declare A\nstart: A", "neither a rule nor a directive"),
        ('start: "a"\nstart: "b"', "twice"),
        ("start: A\n%import other.A", "only common"),
        ("start: A\n%import common.A", "cannot be imported"),
        ('start: "a"~5000', "at most 1000"),
        ("start: /a/x", "flags"),
        ("start: " + "(" * 100 + '"a"' + ")" * 100, "nested deeper"),
        (
            "start: a0\n" + "".join(f"a{i}: a{i + 1} a{i + 1}\n" for i in range(40)) + 'a40: "x"',
            "characters, the limit",
        ),
        ("start: a0\n" + "".join(f"a{i}: a{i + 1}\n" for i in range(1200)) + 'a1200: "x"', "too long a chain"),
    ],
)
def test_what_cannot_be_translated_says_why(grammar: str, reason: str) -> None:
    with pytest.raises(LarkError, match=reason):
        pattern_of_lark(grammar)
