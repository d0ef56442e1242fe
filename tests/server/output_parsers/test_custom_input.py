"""The input of a custom tool, read from a call's arguments in pieces."""

from __future__ import annotations

import json

import pytest

from server.output_parsers.custom_input import CustomInputReader

TEXT = 'a "b"\n\\ é 😀\t\x01\ud83d'


def read(pieces: list[str]) -> tuple[str, str]:
    reader = CustomInputReader()
    return "".join(map(reader.feed, pieces)), reader.finish()


@pytest.mark.parametrize("is_ascii", [True, False])
def test_a_string_is_unescaped_wherever_it_is_cut(is_ascii: bool) -> None:
    shown = TEXT.replace("\ud83d", "\ufffd")
    text = json.dumps({"input": TEXT if is_ascii else shown}, ensure_ascii=is_ascii)
    for at in range(len(text)):
        assert read([text[:at], text[at:]]) == (shown, "")
    assert read(list(text)) == (shown, "")


def test_what_comes_is_told_at_once() -> None:
    reader = CustomInputReader()
    assert [reader.feed(piece) for piece in ('{"inp', 'ut": "ab', "c\\", 'n"}', " x")] == ["", "ab", "c", "\n", ""]


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ('{"note": 1, "input": "a"}', "a"),
        ('{"patch": "a"}', "a"),
        ('{"a": "b", "c": "d"}', '{"a": "b", "c": "d"}'),
        ("ls -l", "ls -l"),
        ("{}", ""),
        ("{", ""),
        ('{"input": {"a": 1}}', '{"input": {"a": 1}}'),
    ],
)
def test_arguments_of_another_form_are_read_at_their_end(arguments: str, found: str) -> None:
    assert read([arguments]) == ("", found)


def test_an_input_that_is_cut_is_told_as_far_as_it_came() -> None:
    assert read(['{"input": "ab\\u00']) == ("ab", "")
    assert read(['{"input": "raw\nline']) == ("raw\nline", "")
