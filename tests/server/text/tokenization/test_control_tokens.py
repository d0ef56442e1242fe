"""Control tokens in texts: found in linear time, and never written by a message."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.text.tokenization.control_tokens import (
    CONTROL_NAME_BEGINS,
    END_TOKENS,
    MARKS,
    ControlTokens,
    choose_mark,
    is_control_name,
)
from server.text.tokenization.gguf_metadata import TokenType
from server.text.tokenizer import Tokenizer
from tests.server.support.gguf_files import metadata_of
from tests.server.text.tokenization.test_sentencepiece_vocabulary import fields_of, train

NAMES = ("<|im_start|>", "<|im_end|>", "</s>", "<s>", "[INST]", "[/INST]", "[INST]x")
MARK = MARKS[0]


def by_brute_force(text: str, ids: dict[str, int]) -> list[str | int]:
    parts: list[str | int] = []
    position = 0
    while position < len(text):
        names = [name for name in ids if text.startswith(name, position)]
        if names:
            name = max(names, key=len)
            parts.append(ids[name])
            position += len(name)
            continue
        if parts and isinstance(parts[-1], str):
            parts[-1] += text[position]
        else:
            parts.append(text[position])
        position += 1
    return parts


IDS = {name: number for number, name in enumerate(NAMES)}
HALVES = [name[:end] for name in NAMES for end in range(1, len(name))]
ENDS = [name[start:] for name in NAMES for start in range(1, len(name))]
fragments = st.one_of(
    st.sampled_from(NAMES),
    st.sampled_from(HALVES),
    st.sampled_from(ENDS),
    st.sampled_from(["<think>", "</think>", "<tool_response>", " ", "\n", "hello", "\u00e9\U0001f600", MARK, "s", "|"]),
    st.text(max_size=3).filter(lambda text: text.isprintable()),
)
contents = st.lists(fragments, max_size=6).map("".join)


@given(st.lists(fragments, max_size=12).map("".join))
def test_a_text_is_split_at_the_longest_names(text: str) -> None:
    assert list(ControlTokens(IDS).split(text)) == by_brute_force(text, IDS)


@pytest.mark.parametrize("offset", range(-14, 3))
def test_a_name_across_the_end_of_a_window_is_found(offset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.text.tokenization.control_tokens.WINDOW", 64)
    before = "x" * (64 + offset)
    assert list(ControlTokens(IDS).split(f"{before}<|im_end|>y")) == [before, 1, "y"]


def test_a_vocabulary_without_control_tokens() -> None:
    assert list(ControlTokens({}).split("a<s>")) == ["a<s>"]
    assert list(ControlTokens({}).split("")) == []
    assert ControlTokens({}).shield("a<s>", MARK, "") == "a<s>"


def test_what_counts_as_a_control_name_begins_as_is_said() -> None:
    for name in (*END_TOKENS, "<start_of_turn>", "<|anything|>", "<|turn>", "<turn|>", '<|"|>'):
        assert is_control_name(name)
        assert name.startswith(CONTROL_NAME_BEGINS)
    for text in ("<think>", "<table>", "<|>", "<|", "|>", "< a|>", "<||"):
        assert not is_control_name(text)


@given(contents)
def test_shielding_adds_nothing_but_marks(text: str) -> None:
    mark = choose_mark([text])
    assert mark is not None
    shielded = ControlTokens(IDS).shield(text, mark, "<think>")
    assert shielded.replace(mark, "") == text
    assert not any(isinstance(part, int) for part in ControlTokens(IDS).split(shielded))


def test_what_the_template_looks_for_stays_whole() -> None:
    source = "{% if m.startswith('<tool_response>') %}{% endif %}{{ m.split('</think>')[-1] }}"
    text = "<tool_response>a</think>b"
    assert ControlTokens(IDS).shield(text, MARK, source) == text
    assert MARK in ControlTokens(IDS).shield(text, MARK, "")


# ---------------------------------------------------------------- where marks are


def shield_by_hand(ids: dict[str, int], text: str, mark: str, literals: str) -> str:
    """What `ControlTokens.shield` says of each place, one after the other; without the mark in front."""
    shielded = ""
    for start, character in enumerate(text):
        shielded += character
        beginnings = [name[:end] for name in ids for end in range(1, len(name) + 1)]
        here = [beginning for beginning in beginnings if text.startswith(beginning, start)]
        if not here:
            continue
        longest = max(here, key=len)
        end = start + len(longest)
        is_word = len(longest) == 1 and (character.isalnum() or character.isspace())
        has_name = any(longest.startswith(name) for name in ids)
        if has_name or end == len(text) or not (is_word or text[start : end + 1] in literals):
            shielded += mark
    return shielded


hostile_texts = st.lists(
    st.sampled_from(["<", "<|", "<|a", "<|a|>", "|", "a", "ab", "abc", "[", "[x", "-", " ", "\n", "é"])
)


@settings(max_examples=300, deadline=None)
@given(
    names=st.sets(st.sampled_from(["<|a|>", "<|ab|>", "<|a", "[x]", "abc", "a", " b", "^-]", "\\d", "é"]), max_size=5),
    pieces=hostile_texts,
    literals=hostile_texts,
    window=st.integers(1, 9),
)
def test_marks_are_where_the_rule_says(names: set[str], pieces: list[str], literals: list[str], window: int) -> None:
    ids = {name: number for number, name in enumerate(sorted(names))}
    text, source = "".join(pieces), "".join(literals)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("server.text.tokenization.control_tokens.WINDOW", window)
        shielded = ControlTokens(ids).shield(text, MARK, source)
    assert shielded.removeprefix(MARK) == shield_by_hand(ids, text, MARK, source)


drawn_names = st.sets(st.text(st.sampled_from("<|ab"), min_size=1, max_size=7), max_size=8)


@settings(max_examples=300, deadline=None)
@given(names=drawn_names, text=st.text(st.sampled_from("<|ab"), max_size=12))
def test_any_names_are_found_and_are_kept_from_being_finished(names: set[str], text: str) -> None:
    ids = {name: number for number, name in enumerate(sorted(names))}
    control = ControlTokens(ids)
    assert list(control.split(text)) == by_brute_force(text, ids)
    # What a template writes before the text may be the beginning of a name of which the text is the rest, or a part.
    finishes = any(text.startswith(name[start:]) for name in ids for start in range(1, len(name)))
    is_short = 0 < len(text) < max(map(len, ids), default=0)
    is_part = is_short and any(text in name for name in ids)
    assert control.shield(text, MARK, text).startswith(MARK) == (finishes or is_part)


@pytest.mark.parametrize("word", ["<|im_start|>", "<", "<|im", "[control_1]", "[", "[c", "hello "])
def test_work_grows_with_the_text_alone(many: Tokenizer, word: str) -> None:
    def seconds(length: int) -> float:
        text = word * (length // len(word))
        started = time.thread_time()
        many.control.shield(text, MARK, "[INST]{{ x }}")
        return time.thread_time() - started

    seconds(1000)  # the first call prepares the pattern
    assert seconds(400_000) < 1.0  # 0.05 s on a quiet machine; minutes where it grows with the square


# ---------------------------------------------------------------- other threads meanwhile


class Ticker:
    """Measures how long another thread had to wait at most, in processor time of this process: others do not count."""

    def __enter__(self) -> Ticker:
        self.longest = 0.0
        self._is_over = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        time.sleep(0.01)
        self.longest = 0.0
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join()

    def _run(self) -> None:
        last = time.process_time()
        while not self._is_over:
            time.sleep(0.0005)
            now = time.process_time()
            self.longest = max(self.longest, now - last)
            last = now


def many_control_tokens() -> Tokenizer:
    """As in Mistral's vocabularies: nearly a thousand that begin alike."""
    fields: dict[str, Any] = fields_of(train())
    names = [f"[control_{number}]" for number in range(800)]
    fields["tokenizer.ggml.tokens"] += names
    fields["tokenizer.ggml.token_type"] += [int(TokenType.CONTROL)] * len(names)
    fields["tokenizer.ggml.scores"] += [0.0] * len(names)
    return Tokenizer.from_gguf(metadata_of(Path(mkdtemp()), fields))


@pytest.fixture(scope="module")
def many() -> Tokenizer:
    return many_control_tokens()


@pytest.mark.parametrize("word", ["[", "[co", "[control_", "<", "[control_1]"])
def test_a_hostile_text_leaves_other_threads_running(many: Tokenizer, word: str) -> None:
    text = word * (480_000 // len(word))
    many.encode(text, add_special_tokens=False, max_tokens=1 << 20)
    with Ticker() as ticker:
        list(many.control.split(text))
        many.control.shield(text, MARK, "")
    assert ticker.longest < 0.5  # 2 s and more where one search goes through the whole text
