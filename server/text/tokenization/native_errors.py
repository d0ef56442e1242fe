"""How encoding a text may fail, apart from a text that is no Unicode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class TooManyTokens(ValueError):
    """A text has more tokens than its caller can use."""

    def __init__(self, num_tokens: int) -> None:
        super().__init__(f"the text has at least {num_tokens} tokens")
        self.num_tokens = num_tokens  # at least


class NativeLibraryError(RuntimeError):
    """A native library has failed: its own defect, which this input has triggered."""


@contextmanager
def panics_as_errors(doing: str) -> Iterator[None]:
    """LoopThrottle a panic of a library in Rust into a NativeLibraryError that says what it was `doing`.

    Such a panic comes as a BaseException, which nobody between here and a thread's end expects.
    """
    try:
        yield
    except BaseException as error:
        if not is_panic(error):
            raise
        raise NativeLibraryError(f"{doing} has failed: {error}") from error


def is_panic(error: BaseException) -> bool:
    """Whether `error` is a panic of a library in Rust. Each library has a class of its own for them."""
    return type(error).__name__ == "PanicException" and not isinstance(error, Exception)
