"""Windows of a text, and the novel from which the published figures were made."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest

from benchmarks.microbenchmarks.text_windows import NOVEL, read_text, text_windows
from server.text.text_model import TextModel
from server.text.tokenizer import Tokenizer
from tests.benchmarks.models.tiny_model import write_tiny_model

TEXT = "".join(chr(33 + i % 90) for i in range(100))  # a token for each character


def tokenizer(folder: Path, *, add_bos_token: bool) -> Tokenizer:
    return TextModel.load(write_tiny_model(folder / "tiny.gguf", add_bos_token=add_bos_token)).tokenizer


def test_windows_are_spread_over_the_text(tmp_path: Path) -> None:
    tokens = tokenizer(tmp_path, add_bos_token=False)
    windows = text_windows(TEXT, tokens, num_windows=3, window_size=10)
    assert windows.dtype == np.int32
    assert [tokens.decode(window.tolist()) for window in windows] == [TEXT[0:10], TEXT[30:40], TEXT[60:70]]


def test_every_window_begins_with_the_token_that_the_model_wants_first(tmp_path: Path) -> None:
    tokens = tokenizer(tmp_path, add_bos_token=True)
    windows = text_windows(TEXT, tokens, num_windows=2, window_size=10)
    assert windows.shape == (2, 10)
    assert windows[:, 0].tolist() == [1, 1]
    assert [tokens.decode(window.tolist()) for window in windows] == [TEXT[0:9], TEXT[45:54]]


def test_windows_can_cover_the_whole_text(tmp_path: Path) -> None:
    tokens = tokenizer(tmp_path, add_bos_token=False)
    windows = text_windows(TEXT, tokens, num_windows=10, window_size=10)
    assert tokens.decode(windows.reshape(-1).tolist()) == TEXT


@pytest.mark.parametrize(
    ("num_windows", "window_size", "words"),
    [
        (11, 10, "the text has 100 tokens, which make at most 10 windows of 10"),
        (0, 10, "the number of windows is 0; it must be at least 1"),
        (1, 1, "the window size is 1; it must be at least 2"),
    ],
)
def test_impossible_windows_are_refused(tmp_path: Path, num_windows: int, window_size: int, words: str) -> None:
    tokens = tokenizer(tmp_path, add_bos_token=False)
    with pytest.raises(ValueError, match=words):
        text_windows(TEXT, tokens, num_windows=num_windows, window_size=window_size)


def test_the_novel_is_complete() -> None:
    text = read_text(NOVEL)
    assert text.startswith("CHAPTER 1\n\nNo one who had ever seen Catherine Morland in her infancy")
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert digest in (NOVEL.parent / "README.md").read_text(encoding="utf-8")


def test_plain_and_compressed_texts_are_read(tmp_path: Path) -> None:
    plain, packed = tmp_path / "text.txt", tmp_path / "text.txt.gz"
    plain.write_bytes("naïve".encode())
    packed.write_bytes(gzip.compress("naïve".encode()))
    assert read_text(plain) == read_text(packed) == "naïve"
    plain.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"text\.txt is no UTF-8 text"):
        read_text(plain)
