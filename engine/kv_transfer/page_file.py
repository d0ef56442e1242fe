"""The file of one page: a header with the page's name and a digest, then the bytes of its keys and values.

It appears by renaming; damage by a crash of the machine or a failing disk is found by the digest.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from struct import Struct

import numpy as np

SUFFIX = ".page"
TEMPORARY_PREFIX = ".writing-"

_MAGIC = b"eagrepg1"
_HEADER = Struct("<8sQ32s32s")  # magic, bytes of the content, name, digest of all three and the content


class DamagedPage(ValueError):
    """The file is not what was written; the message says how."""


def write_page_file(path: Path, name: bytes, content: Sequence[np.ndarray], *, attempt: str) -> int:
    """Writes a file beside `path` and renames it; returns its size in bytes; raises OSError and leaves nothing of it.

    `attempt` distinguishes concurrent writers of contiguous arrays under a name of 32 bytes.
    """
    pieces = [array.reshape(-1).view(np.uint8).data for array in content]
    size = sum(piece.nbytes for piece in pieces)
    header = _HEADER.pack(_MAGIC, size, name, _digest(name, size, pieces))
    unfinished = path.with_name(f"{TEMPORARY_PREFIX}{attempt}")
    try:
        with unfinished.open("wb", buffering=0) as file:
            for piece in (memoryview(header), *pieces):
                _write_all(file.fileno(), piece)
        unfinished.replace(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
    return _HEADER.size + size


def read_page_file(path: Path, name: bytes, size: int) -> np.ndarray:
    """The content of a page, uint8[size]; raises DamagedPage or OSError."""
    content = np.empty(size, np.uint8)
    with path.open("rb", buffering=0) as file:
        header = file.read(_HEADER.size)
        length = os.fstat(file.fileno()).st_size
        if len(header) < _HEADER.size or length != _HEADER.size + size:
            raise DamagedPage(f"{path} has {length} bytes in the place of {_HEADER.size + size}")
        _read_all(file.fileno(), content.data)
    magic, stated_size, stated_name, digest = _HEADER.unpack(header)
    if (magic, stated_size, stated_name) != (_MAGIC, size, name):
        raise DamagedPage(f"{path} is not the page that its name says")
    if digest != _digest(name, size, [content.data]):
        raise DamagedPage(f"{path} does not have the digest that it was written with")
    return content


def _digest(name: bytes, size: int, pieces: Sequence[memoryview]) -> bytes:
    """SHA-256, without the interpreter lock for most of its time."""
    seen = hashlib.sha256(_MAGIC + size.to_bytes(8, "little") + name)
    for piece in pieces:
        seen.update(piece)
    return seen.digest()


def _write_all(descriptor: int, piece: memoryview) -> None:
    while piece:
        piece = piece[os.write(descriptor, piece) :]


def _read_all(descriptor: int, into: memoryview) -> None:
    """Fills `into`; raises DamagedPage if the file ends before."""
    while into:
        num_read = os.readv(descriptor, [into])
        if num_read == 0:
            raise DamagedPage("the file became shorter while it was read")
        into = into[num_read:]
