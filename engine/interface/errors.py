"""What is raised of a model that cannot be served.

The errors are values' errors: a model is an argument, by its path or its content. What goes wrong in
a running engine is in `engine/interface/types.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MAX_ERROR_LETTERS = 1000


class ModelError(ValueError):
    """The model cannot be served: it is damaged, incomplete or of a kind that is not served.

    The message names the file, and in it the field or the tensor, and says why.
    """


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Makes each ModelError one that names the model at `path`, because most readers know only its inside.

    Of one that is longer than MAX_ERROR_LETTERS the middle is left out: libraries quote whole values of a file.
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
