"""Failures of native libraries."""

from __future__ import annotations

import pytest

from server.text.tokenization.native_errors import NativeLibraryError, TooManyTokens, panics_as_errors
from server.text.tokenization.tokenizers_encoder import TokenizersEncoder
from tests.model_folders import byte_level_tokenizer


class PanicException(BaseException):
    """What a panic in Rust is to Python."""


def test_a_panic_becomes_an_error() -> None:
    with (
        pytest.raises(NativeLibraryError, match="the tokenizer has failed: index out of bounds"),
        panics_as_errors("the tokenizer"),
    ):
        raise PanicException("index out of bounds")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("x")])
def test_others_stay_what_they_are(error: BaseException) -> None:
    with pytest.raises(type(error)), panics_as_errors("the tokenizer"):
        raise error


class Panicking:
    def encode_batch_fast(self, texts: list[str], add_special_tokens: bool) -> None:
        raise PanicException("no entry found for key")


def test_a_tokenizer_that_panics() -> None:
    encoder = TokenizersEncoder(Panicking(), {}, [])  # type: ignore[arg-type]
    with pytest.raises(NativeLibraryError, match="the tokenizer has failed: no entry found for key"):
        encoder.encode("a", None)


def test_more_tokens_than_are_of_use_are_not_listed() -> None:
    encoder = TokenizersEncoder(byte_level_tokenizer(), {}, [])
    assert len(encoder.encode("x" * 10, 10)) == 10
    with pytest.raises(TooManyTokens) as caught:
        encoder.encode("x" * 11, 10)
    assert caught.value.num_tokens == 11
