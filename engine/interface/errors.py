"""The error of a model that cannot be served.

It is a ValueError: a model is an argument, by its path or its content. The errors of a running engine are in
`engine/interface/types.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MAX_ERROR_LETTERS = 1000


class ModelError(ValueError):
    """The model cannot be served: it is damaged, incomplete or not supported.

    The message names the file, and in it the field or the tensor, and says why.
    """


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Adds the model's `path` to the message of each ModelError, because most readers know only its inside.

    Messages longer than MAX_ERROR_LETTERS are shortened in the middle: libraries quote whole values of a file.
    """
    try:
        yield
    except ModelError as error:
        message = str(error) if str(path) in str(error) else f"{path}: {error}"
        if message == str(error) and len(message) <= MAX_ERROR_LETTERS:
            raise
        if len(message) > MAX_ERROR_LETTERS:
            message = f"{message[: MAX_ERROR_LETTERS // 2]} ... {message[-MAX_ERROR_LETTERS // 2 :]}"
        raise ModelError(message) from error
