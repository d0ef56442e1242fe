"""A file of the compiled programs of one engine: a start that finds it neither traces nor lowers anything.

JAX's own cache saves the work of the compiler alone: its keys are made of the lowered programs, and to trace and lower
all of them holds the interpreter lock for longer than everything else in a start.
"""

import hashlib
import logging
import os
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import jax
import jaxlib.version
import numpy as np
from jax.experimental.serialize_executable import deserialize_and_load, serialize

from engine.interface.cpu import cpu_features, num_cores
from engine.interface.trusted_file import NotTrusted, read_trusted

_FILE_NAME = "programs"
_DIGEST_BYTES = 32  # of all that follows, at the begin of the file
_SIZES = struct.Struct("<QQ")  # bytes of a key's text and of its program, which follow
_LONGEST_WRITE_S = 3600.0  # on the slowest of disks
_PACKAGES = ("cache", "engine", "sampling")  # what programs are traced from

_log = logging.getLogger(__name__)


class ProgramTrees(NamedTuple):
    """How the arguments and results of one program are nested; the leaves of both trees may be anything."""

    arguments: tuple[Any, ...]
    results: Any


class ProgramCache:
    """The compiled programs of one engine, found again by the same engine of a later process.

    The file holds what `jax.experimental.serialize_executable` makes of each program: machine code, and pickled objects
    of JAX. Whoever may write it may run code as the server's user; machine code would allow that in any other format
    too. So it is only read where nobody but this user and root can have written it.
    """

    def __init__(self, store: Path, fingerprint: str, trees_of: Callable[[Hashable], ProgramTrees]) -> None:
        self._path = store / hashlib.sha256(fingerprint.encode()).hexdigest()[:32] / _FILE_NAME
        self._trees_of = trees_of
        self._warning = Lock()  # held from the first warning on, so that it is the only one
        self._stored = self._read()

    def __contains__(self, key: Hashable) -> bool:
        """Whether there is something to load."""
        return repr(key) in self._stored

    def load(self, key: Hashable) -> Callable[..., Any] | None:
        """The program of a key, or None where there is none that can be used. May be called by several threads."""
        stored = self._stored.get(repr(key))
        if stored is None:
            return None
        trees = self._trees_of(key)
        try:
            program: Callable[..., Any] = deserialize_and_load(
                stored, jax.tree.structure((trees.arguments, {})), jax.tree.structure(trees.results)
            )
        except Exception as error:  # noqa: BLE001 - JAX raises many kinds, and the program can be compiled instead
            if self._warning.acquire(blocking=False):
                _log.warning("compiled programs in %s cannot be used, and are compiled anew: %s", self._path, error)
            return None
        return program

    def add(self, programs: Mapping[Hashable, Any]) -> None:
        """Writes programs, compiled in this process, beside those that the file has, whole or not at all.

        Where the disk refuses, the log says so. What was read from a cache cannot be written out again.
        """
        blobs = dict(self._stored)
        for key, program in programs.items():
            try:
                blob, _, results = serialize(program)
            except (NotImplementedError, ValueError, jax.errors.JaxRuntimeError):
                continue  # a device or a program that does not allow it
            if results == jax.tree.structure(self._trees_of(key).results):
                blobs[repr(key)] = blob
        try:
            self._write(blobs)
        except OSError as error:
            _log.warning("compiled programs are not kept in %s, so the next start compiles them: %s", self._path, error)

    def forget(self, key: Hashable) -> None:
        """Removes a program that could not be loaded, so that the next start compiles and keeps it."""
        if self._stored.pop(repr(key), None) is not None:
            with suppress(OSError):
                self._write(dict(self._stored))

    def _read(self) -> dict[str, bytes]:
        """The content of the file, by the keys' texts; nothing if it is missing or damaged."""
        with suppress(OSError):
            try:
                whole = memoryview(read_trusted(self._path))
            except NotTrusted as error:
                _log.warning("compiled programs are not read, because they may run code, and are compiled: %s", error)
                return {}
            content = whole[_DIGEST_BYTES:]
            if hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest() != whole[:_DIGEST_BYTES]:
                _log.warning("the compiled programs in %s are damaged, and are compiled anew", self._path)
                return {}
            os.utime(self._path.parent)  # the store removes first what was used longest ago
            stored, at = dict[str, bytes](), 0
            while at < len(content):
                name_size, size = _SIZES.unpack_from(content, at)
                start = at + _SIZES.size + name_size
                stored[str(content[start - name_size : start], "utf-8")] = bytes(content[start : start + size])
                at = start + size
            return stored
        return {}

    def _remove_unfinished(self) -> None:
        """Removes the files of processes that were killed while they wrote."""
        for path in self._path.parent.glob(f".{_FILE_NAME}-*"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > _LONGEST_WRITE_S:
                    path.unlink()

    def _write(self, blobs: Mapping[str, bytes]) -> None:
        entries = ((name.encode(), blob) for name, blob in blobs.items())
        content = b"".join(_SIZES.pack(len(name), len(blob)) + name + blob for name, blob in entries)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._remove_unfinished()
        with tempfile.NamedTemporaryFile(dir=self._path.parent, prefix=f".{_FILE_NAME}-", delete=False) as file:
            try:
                file.write(hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest())
                file.write(content)
                file.close()
                os.replace(file.name, self._path)
            except BaseException:
                with suppress(OSError):
                    os.unlink(file.name)
                raise


def described(*trees: Any) -> str:
    """Nesting, shapes and types of trees of arrays, as a text that differs where programs would."""
    leaves, structure = jax.tree.flatten(trees)
    return f"{structure} {[(np.shape(leaf), str(leaf.dtype)) for leaf in leaves]}"


def environment(modules: Iterable[str] = ()) -> str:
    """What programs depend on besides the model and the configuration, as a text.

    The processor is a part of it: an instruction that another one lacks would end the process. `modules` are the names
    of further modules of which programs are made.
    """
    values = {name: value for name, value in jax.config.values.items() if "cache" not in name}
    more = [_digest_of(file) for name in modules if (file := getattr(sys.modules.get(name), "__file__", None))]
    versions = (jax.__version__, jaxlib.version.__version__, sys.version)
    device = jax.local_devices()[0]
    # XLA divides the work of a program on a CPU by the number of cores.
    machine = (
        cpu_features(), num_cores(), device.platform, device.device_kind, device.client.platform_version,
        os.environ.get("XLA_FLAGS"),
    )  # fmt: skip
    return repr((versions, machine, sorted(map(repr, values.items())), digest_of_sources(), more))


@cache
def digest_of_sources() -> str:
    """A digest of all Python files whose code may become part of a program, in hexadecimal digits."""
    seen = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    root = Path(__file__).parents[2]
    for package in _PACKAGES:
        # A start waits for this; with paths of `pathlib` it takes twice as long.
        files = [f"{folder}/{name}" for folder, _, names in os.walk(root / package) for name in names]
        for path in sorted(name for name in files if name.endswith(".py")):
            with open(path, "rb", buffering=0) as file:
                seen.update(os.fsencode(path.removeprefix(f"{root}/")) + b"\0" + file.read() + b"\0")
    return seen.hexdigest()


def _digest_of(file: str) -> str:
    return hashlib.blake2b(Path(file).read_bytes(), digest_size=_DIGEST_BYTES).hexdigest()
