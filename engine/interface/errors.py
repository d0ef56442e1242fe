"""The error of a model that cannot be served; those of a running engine are in `engine/interface/types.py`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MAX_ERROR_LETTERS = 1000


class ModelError(ValueError):
    """The model is damaged, incomplete or not supported; the message names the file and the field or tensor."""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Adds the model's `path` to the message of each ModelError, and shortens it: libraries quote whole values."""
    try:
        yield
    except ModelError as error:
        message = str(error) if str(path) in str(error) else f"{path}: {error}"
        if message == str(error) and len(message) <= MAX_ERROR_LETTERS:
            raise
        if len(message) > MAX_ERROR_LETTERS:
            message = f"{message[: MAX_ERROR_LETTERS // 2]} ... {message[-MAX_ERROR_LETTERS // 2 :]}"
        raise ModelError(message) from error
