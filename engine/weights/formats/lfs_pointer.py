"""Git LFS pointer files, which stand in for the content that they name. Source: the specification of Git LFS."""

from pathlib import Path

from engine.interface.errors import ModelError
from engine.interface.regular_file import open_regular

WHAT_IT_IS = "is a pointer of Git LFS in the place of the weights; fetch them with `git lfs pull`"
_BEGIN = b"version https://git-lfs"


def is_pointer(path: Path) -> bool:
    """Whether a file is a pointer; raises OSError if it cannot be read."""
    with open_regular(path) as file:
        return file.read(len(_BEGIN)) == _BEGIN


def refuse_pointer(path: Path) -> None:
    """Raises ModelError if the file is a pointer, or cannot be read."""
    try:
        found = is_pointer(path)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    if found:
        raise ModelError(f"{path} {WHAT_IT_IS}")
