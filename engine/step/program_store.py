"""Compiled programs kept on disk between starts, each of them whole or not at all.

JAX's persistent compilation cache writes an entry in place: a process that is killed while it writes, or a second
process that reads meanwhile, finds half an entry, and JAX keeps such an entry for ever. So JAX never sees the store
itself. It gets a private folder with links to the entries whose checksum is right, and what it has added there is
moved into the store after the compiles, by renaming, which is atomic.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import re
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

MAX_BYTES = 512 << 20  # of one store; a configuration of the default model takes about 1 MiB

_ENTRY_SUFFIX = "-cache"  # JAX's name of an entry is its key and this
_DIGEST_LENGTH = 16  # hexadecimal digits
_PRIVATE_PREFIX = ".private-"
_CONFIGURATION = re.compile(r"[0-9a-f]{32}")  # the name of a configuration's folder

# JAX's settings are those of the whole process, so that one thread at a time may change them and change them back.
_settings_lock = threading.RLock()


class ProgramStore:
    """The programs of many configurations, each in a folder of its own, within one limit of bytes.

    Every failure of the disk (full, read-only, not permitted) only costs the time to compile again.
    """

    def __init__(self, folder: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self._folder = folder
        self._max_bytes = max_bytes

    @contextlib.contextmanager
    def opened(self, fingerprint: str) -> Iterator[None]:
        """JAX finds the programs of a configuration while the context lasts, and keeps those it compiles in it.

        JAX's setting is one of the whole process. So a second thread waits until the first has left its context.

        Args:
            fingerprint: names everything that programs depend on beside what JAX itself puts into their keys.
        """
        entries = self._folder / hashlib.sha256(fingerprint.encode()).hexdigest()[:32]
        with contextlib.ExitStack() as stack:
            stack.enter_context(_settings_lock)
            try:
                entries.mkdir(parents=True, exist_ok=True)
                self._remove_abandoned()
                private = stack.enter_context(_private_folder(self._folder))
            except OSError:
                # JAX still finds nothing half-written in a folder that is empty and goes away with this process.
                private = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="eagre-programs-")))
            known = _lend(entries, private)
            try:
                with _jax_cache(private):
                    yield
            finally:
                _publish(private, known, entries)
                self._evict(spared=entries)

    def _remove_abandoned(self) -> None:
        """Private folders of processes that were killed; a living process holds a lock on its own."""
        for folder in self._folder.glob(f"{_PRIVATE_PREFIX}*"):
            with contextlib.suppress(OSError), _locked(folder):
                shutil.rmtree(folder, ignore_errors=True)

    def _evict(self, spared: Path) -> None:
        """Removes the configurations used longest ago until the store is within its limit.

        The folder may be one in which somebody keeps other things too; only what the store has made is touched.
        """
        with contextlib.suppress(OSError):
            os.utime(spared)
            folders = [path for path in self._folder.iterdir() if _CONFIGURATION.fullmatch(path.name)]
            folders.sort(key=lambda path: path.stat().st_mtime)
            sizes = {path: sum(file.stat().st_size for file in path.iterdir()) for path in folders}
            total = sum(sizes.values())
            for folder in folders:
                if total <= self._max_bytes:
                    return
                if folder != spared:
                    shutil.rmtree(folder, ignore_errors=True)
                    total -= sizes[folder]


def processor() -> str:
    """What tells processors apart for which XLA generates different code."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        return f"{platform.machine()} {platform.processor()}"
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())


@contextlib.contextmanager
def _private_folder(parent: Path) -> Iterator[Path]:
    """A folder that only this process uses, in the file system of the store, so that links into it are possible."""
    folder = Path(tempfile.mkdtemp(prefix=_PRIVATE_PREFIX, dir=parent))
    try:
        with _locked(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds the lock of a folder, which ends with the process however that ends.

    Raises:
        OSError: another process holds it, or the folder is gone.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _lend(entries: Path, private: Path) -> set[str]:
    """Puts the sound entries of a configuration into a private folder, under JAX's names for them.

    Damaged entries are removed, so that the compile that follows replaces them.

    Returns:
        The names that are there now.
    """
    lent = set()
    with contextlib.suppress(OSError):  # the folder may not exist on a disk that cannot be written
        for path in sorted(entries.iterdir()):
            name, _, digest = path.name.rpartition(".")
            try:
                content = path.read_bytes()
                if not name.endswith(_ENTRY_SUFFIX) or _digest(content) != digest:
                    path.unlink()
                    continue
                _link_or_copy(path, private / name, content)
            except OSError:
                continue
            lent.add(name)
    return lent


def _link_or_copy(path: Path, to: Path, content: bytes) -> None:
    try:
        os.link(path, to)
    except OSError:  # another file system, or one without links
        to.write_bytes(content)


def _publish(private: Path, known: set[str], entries: Path) -> None:
    """Moves the entries that JAX has added into the store."""
    with contextlib.suppress(OSError):
        for path in private.glob(f"*{_ENTRY_SUFFIX}"):
            if path.name in known:
                continue
            digest = _digest(path.read_bytes())
            for old in entries.glob(f"{path.name}.*"):  # of a process that compiled the same at the same time
                old.unlink(missing_ok=True)
            path.replace(entries / f"{path.name}.{digest}")


@contextlib.contextmanager
def _jax_cache(folder: Path) -> Iterator[None]:
    """JAX's persistent cache in a folder; every program is kept, however fast it was compiled."""
    settings: dict[str, object] = {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
        # JAX would have XLA write caches of its own into the folder, on GPUs.
        "jax_persistent_cache_enable_xla_caches": "none",
    }
    before = {name: getattr(jax.config, name) for name in settings}
    try:
        for name, value in settings.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()  # JAX looks at the folder's name only once
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=_DIGEST_LENGTH // 2).hexdigest()
