from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from server.text.stop_strings import StopStrings

letters = st.text(alphabet="ab", max_size=10)
stop_lists = st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3)


def whole_text(text: str, stops: list[str], include_stop: bool) -> tuple[str, str | None]:
    """The naive model: the shortest prefix of the text that ends with a stop string decides."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end if include_stop else end - len(stop)], stop
    return text, None


def splits(text: str) -> Iterator[list[str]]:
    """Every way to cut `text` into non-empty chunks."""
    if not text:
        yield []
    for length in range(1, len(text) + 1):
        for rest in splits(text[length:]):
            yield [text[:length], *rest]


def stream(chunks: list[str], stops: list[str], include_stop: bool) -> tuple[str, str | None]:
    matcher = StopStrings(stops, include_stop=include_stop)
    text, stopped = "", None
    for chunk in chunks:
        emit, stopped = matcher.feed(chunk)
        text += emit
    return text + matcher.flush(), stopped


@given(letters, stop_lists, st.booleans(), st.data())
def test_any_split_equals_the_naive_model(text: str, stops: list[str], include: bool, data: st.DataObject) -> None:
    chunks, start = [], 0
    while start < len(text):
        end = data.draw(st.integers(start + 1, len(text)))
        chunks.append(text[start:end])
        start = end
    assert stream(chunks, stops, include) == whole_text(text, stops, include)


@pytest.mark.parametrize(
    ("text", "stops"),
    [
        ("aabaab", ["aab"]),
        ("abababac", ["ababac"]),
        ("xabcdx", ["abcd", "bc"]),
        ("xabcdx", ["bcd", "abcd"]),
        ("aaaaaaa", ["aaaaaaaa", "aaab"]),
        ("x\n\nUser", ["\n\nUser:", "\nU"]),
    ],
)
def test_every_split_of_tricky_texts(text: str, stops: list[str]) -> None:
    for include_stop in (False, True):
        expected = whole_text(text, stops, include_stop)
        for chunks in splits(text):
            assert stream(chunks, stops, include_stop) == expected


@given(letters, stop_lists)
def test_only_text_that_may_become_a_stop_string_is_held_back(text: str, stops: list[str]) -> None:
    if whole_text(text, stops, False)[1] is not None:
        return
    matcher = StopStrings(stops)
    emitted = "".join(matcher.feed(character)[0] for character in text)
    held = text[len(emitted) :]
    beginnings = {stop[:length] for stop in stops for length in range(1, len(stop))}
    assert held == max((text[i:] for i in range(len(text)) if text[i:] in beginnings), key=len, default="")
    assert matcher.flush() == held


def test_the_match_that_ends_first_wins() -> None:
    assert StopStrings(["abcd", "bc"]).feed("xabcd") == ("xa", "bc")


def test_of_matches_that_end_together_the_longest_wins() -> None:
    assert StopStrings(["cd", "abcd", "bcd"]).feed("xabcd") == ("x", "abcd")


def test_text_after_the_stop_is_dropped() -> None:
    matcher = StopStrings(["END"])
    assert matcher.feed("some E") == ("some ", None)
    assert matcher.feed("ND and more") == ("", "END")
    assert matcher.feed("late") == ("", "END")
    assert matcher.flush() == ""


def test_include_stop_keeps_the_stop_and_nothing_after_it() -> None:
    matcher = StopStrings(["END"], include_stop=True)
    assert matcher.feed("some E") == ("some ", None)
    assert matcher.feed("ND and more") == ("END", "END")


def test_without_stop_strings_nothing_is_held() -> None:
    assert StopStrings([]).feed("text") == ("text", None)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="stop string is empty"):
        StopStrings(["a", ""])


@settings(max_examples=40)
@given(
    st.text("ab", max_size=12), st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=5), min_size=1)
)
def test_text_that_was_seen_is_not_told_again_and_may_begin_a_stop_string(
    seen: str, text: str, stops: list[str]
) -> None:
    whole = StopStrings(stops)
    before, stopped = whole.feed(seen)
    assume(stopped is None)
    after, stopped = whole.feed(text)
    everything = before + after + whole.flush()
    behind = StopStrings(stops)
    behind.begin_behind(seen)
    told, found = behind.feed(text)
    assert found == stopped
    assert told + behind.flush() == everything[len(seen) :]
