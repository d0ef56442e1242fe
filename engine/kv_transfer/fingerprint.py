"""The fingerprint of a model and its computation, which distinguishes pages that must not be mixed.

Keys and values follow from the tokens, the weights and the program that computes them. A stored page equals a computed
one, bit for bit, only if all three are the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from engine.weights.formats.gguf_shards import shard_paths

_CODE = ("engine", "cache")  # the packages that compute keys and values
_CODE_SUFFIXES = (".py", ".so", ".cc", ".h")
_DIGESTS = "digests"  # folder of the digests of large files, so that a restart need not read them


class ModelChanged(OSError):
    """The model's files have changed since its weights were read."""


class _FileState(NamedTuple):
    """Tells whether a file is unchanged, without reading it."""

    path: Path  # absolute, without links
    size: int
    modified_ns: int
    changed_ns: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> _FileState:
        real = path.resolve()
        found = real.stat()
        return cls(real, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)


class ModelFiles:
    """The files of a model as they were at one moment, before its weights were read."""

    def __init__(self, path: Path) -> None:
        """Raises OSError if a file is missing."""
        self._path = path
        self._states = _states(path)

    def __eq__(self, other: object) -> bool:
        """Whether both are the same files, unchanged, as far as can be told without reading them."""
        return isinstance(other, ModelFiles) and self._states == other._states

    __hash__ = None  # type: ignore[assignment]  # nothing is found by it

    def digest(self, digests: Path | None) -> str:
        """SHA-256 of all files; blocks while they are read, but for those with digests in the folder.

        Raises ModelChanged where the files have changed, OSError where one cannot be read.
        """
        seen = hashlib.sha256()
        for state in self._states:
            seen.update(_digest_of_file(state, digests).encode())
        if _states(self._path) != self._states:
            raise ModelChanged(f"{self._path} has changed since its weights were read")
        return seen.hexdigest()


def fingerprint(files: ModelFiles, parts: Sequence[str], folder: Path) -> str:
    """32 hexadecimal digits; blocks while it reads the model's files, the first time. Raises OSError.

    `parts` are what else the computation depends on: configuration, layout of pages, kernels, libraries, processor.
    """
    seen = hashlib.sha256()
    for part in (files.digest(folder / _DIGESTS), _digest_of_code(), *parts):
        seen.update(len(part.encode()).to_bytes(8, "little") + part.encode())
    return seen.hexdigest()[:32]


def _states(path: Path) -> list[_FileState]:
    """Of a folder all files in it, because any of them may say how the weights are to be read."""
    if path.is_dir():
        found = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
    else:
        found = shard_paths(path)
    return [_FileState.of(file) for file in found]


def _digest_of_file(state: _FileState, digests: Path | None) -> str:
    kept = None
    if digests is not None:
        kept = digests / hashlib.sha256(repr(state).encode()).hexdigest()
        with contextlib.suppress(OSError, ValueError):
            text = kept.read_text(encoding="ascii")
            if len(bytes.fromhex(text)) == hashlib.sha256().digest_size:
                return text
    with state.path.open("rb") as file:
        text = hashlib.file_digest(file, "sha256").hexdigest()
    if kept is not None:
        with contextlib.suppress(OSError):
            _write_whole(kept, text)
    return text


def _write_whole(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="ascii") as file:
        file.write(text)
    os.replace(file.name, path)


def _digest_of_code() -> str:
    """A digest of all sources and kernels that may compute keys and values: after an upgrade the cache is empty."""
    seen = hashlib.sha256()
    for path in _code():
        content = path.read_bytes()
        seen.update(f"{path.name} {len(content)} ".encode() + content)
    return seen.hexdigest()


def _code() -> Iterator[Path]:
    root = Path(__file__).parents[2]
    for package in _CODE:
        yield from sorted(path for path in (root / package).rglob("*") if path.suffix in _CODE_SUFFIXES)
