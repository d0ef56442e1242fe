"""Errors of tokenizer libraries: too many tokens, and panics of native code."""

from collections.abc import Iterator
from contextlib import contextmanager


class TooManyTokens(ValueError):
    def __init__(self, num_tokens: int) -> None:
        super().__init__(f"the text has at least {num_tokens} tokens")
        self.num_tokens = num_tokens  # at least


class NativeLibraryError(RuntimeError):
    """A native library has failed: its own defect, which this input has triggered."""


@contextmanager
def panics_as_errors(doing: str) -> Iterator[None]:
    """Turns a panic of a Rust library, a BaseException, into a NativeLibraryError that says what it was `doing`."""
    try:
        yield
    except BaseException as error:
        if not is_panic(error):
            raise
        raise NativeLibraryError(f"{doing} has failed: {error}") from error


def is_panic(error: BaseException) -> bool:
    """Whether `error` is a panic of a Rust library. Each library has an exception class of its own for them."""
    return type(error).__name__ == "PanicException" and not isinstance(error, Exception)
