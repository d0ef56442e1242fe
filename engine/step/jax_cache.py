"""JAX's persistent compilation cache, with entries that are whole or absent.

JAX writes an entry in place: a process that is killed while it writes, or a second process that reads meanwhile, finds
half an entry, and JAX keeps such an entry for ever. So JAX never sees the store itself. It gets a private folder with
links to the entries whose checksum is right, and new entries are moved from there into the store after the compiles, by
renaming, which is atomic.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import re
import shutil
import tempfile
import threading
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

import jax
from jax.experimental.compilation_cache import compilation_cache

ENTRY_SUFFIX = "-cache"  # JAX's name of an entry is the program's name, "-", a digest and this

# JAX reports an entry that it could not use by this warning alone, and compiles the program.
_FAILED = re.compile(r"Error (reading|writing) persistent compilation cache entry for '([^']*)': (.*)", re.DOTALL)


class _JaxFolder:
    """A folder in which JAX looks for programs and writes those that it compiles."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._found: set[str] = set()  # names of the entries that were there before, less those that proved unusable
        self._unwritten: set[str] = set()  # names of programs of which an entry was not written, or not whole
        self.num_unusable = 0  # entries that JAX found and could not read
        self.write_error: str | None = None  # why an entry was not written

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Makes JAX use the folder while the context lasts, for programs of any size.

        JAX's settings are those of the whole process, and so are Python's filters of warnings.
        """
        settings: dict[str, object] = {
            "jax_compilation_cache_dir": str(self._folder),
            "jax_persistent_cache_min_compile_time_secs": 0.0,
            "jax_persistent_cache_min_entry_size_bytes": -1,
            # JAX would have XLA write caches of its own into the folder, on GPUs.
            "jax_persistent_cache_enable_xla_caches": "none",
        }
        self._found = {path.name for path in self._entries()}
        before = {name: getattr(jax.config, name) for name in settings}
        with self._failures_noted():
            try:
                for name, value in settings.items():
                    jax.config.update(name, value)
                compilation_cache.reset_cache()  # JAX looks at the folder's name only once
                yield
            finally:
                for name, value in before.items():
                    jax.config.update(name, value)
                compilation_cache.reset_cache()

    def added(self) -> list[Path]:
        """The entries that JAX has written, each of them whole."""
        return [
            path
            for path in self._entries()
            if path.name not in self._found and not any(_is_of(path.name, program) for program in self._unwritten)
        ]

    def _entries(self) -> list[Path]:
        return sorted(self._folder.glob(f"*{ENTRY_SUFFIX}"))

    @contextlib.contextmanager
    def _failures_noted(self) -> Iterator[None]:
        with warnings.catch_warnings():
            shown_before = warnings.showwarning

            def show(
                message: Warning | str, category: type[Warning], filename: str, lineno: int,
                file: TextIO | None = None, line: str | None = None,
            ) -> None:  # fmt: skip
                failed = _FAILED.match(str(message))
                if failed is None:
                    shown_before(message, category, filename, lineno, file, line)
                elif failed[1] == "reading":
                    self._forget(failed[2])
                else:
                    self._unwritten.add(failed[2])
                    self.write_error = self.write_error or failed[3]

            warnings.filterwarnings("always", "Error (reading|writing) persistent compilation cache entry")
            warnings.showwarning = show
            yield

    def _forget(self, program: str) -> None:
        """Removes the entries of a program: JAX never overwrites an entry, and is about to compile the program.

        Which of several entries it was is unknown. The sound ones cost a compile.
        """
        for name in [name for name in self._found if _is_of(name, program)]:
            with contextlib.suppress(OSError):
                (self._folder / name).unlink(missing_ok=True)
            self._found.discard(name)
            self.num_unusable += 1


@contextlib.contextmanager
def cache_passed_by() -> Iterator[None]:
    """Disables JAX's compilation cache while the context lasts, in the whole process.

    XLA cannot write out again what it has read from the cache: on CPUs such a copy lacks functions, which shows only
    when it runs.
    """
    before = jax.config.values["jax_enable_compilation_cache"]
    try:
        jax.config.update("jax_enable_compilation_cache", False)
        compilation_cache.reset_cache()  # JAX looks at the setting only once
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


def _is_of(entry: str, program: str) -> bool:
    return entry.startswith(f"{program}-")


MAX_BYTES = 512 << 20  # of one store; a configuration of the default model takes about 4 MiB

_DIGEST_LENGTH = 16  # hexadecimal digits
_PRIVATE_PREFIX = ".private-"
_CONFIGURATION = re.compile(r"[0-9a-f]{32}")  # the name of a configuration's folder
_MOST_ATTEMPTS = 100  # at a private folder that no other process takes for an abandoned one

_log = logging.getLogger(__name__)

# JAX's settings are those of the whole process, so that one thread at a time may change them and change them back.
_settings_lock = threading.RLock()


class JaxCompilationCache:
    """The programs of many configurations, each in a folder of its own, within one limit of bytes.

    Every failure of the disk (full, read-only, not permitted) only costs the time to compile again, and one warning in
    the log.
    """

    def __init__(self, folder: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self._folder = folder
        self._max_bytes = max_bytes

    @contextlib.contextmanager
    def opened(self, fingerprint: str) -> Iterator[None]:
        """Makes JAX find the programs of a configuration, and keep those it compiles, while the context lasts.

        JAX's setting is one of the whole process. So a second thread waits until the first has left its context.

        Args:
            fingerprint: names everything that programs depend on besides what JAX itself puts into their keys.
        """
        entries = self._folder / hashlib.sha256(fingerprint.encode()).hexdigest()[:32]
        with contextlib.ExitStack() as stack:
            stack.enter_context(_settings_lock)
            private, error = self._enter_private(entries, stack)
            if private is None:
                yield
                _log_problems(self._folder, 0, error)
                return
            num_damaged = _lend(entries, private)
            cache = _JaxFolder(private)
            try:
                with cache.used():
                    yield
            finally:
                reason = _publish(cache.added(), entries, error) or cache.write_error
                self._evict(spared=entries)
                _log_problems(self._folder, num_damaged + cache.num_unusable, reason)

    def _enter_private(self, entries: Path, stack: contextlib.ExitStack) -> tuple[Path | None, OSError | None]:
        """A folder for JAX until the end of `stack`, and, where it is not in the store, the reason.

        The other place is that of the system's temporary files. None if that cannot be written either: without a folder
        JAX keeps nothing, and finds nothing that is half-written.
        """
        try:
            entries.mkdir(parents=True, exist_ok=True)
            self._remove_abandoned()
            return stack.enter_context(_private_folder(self._folder)), None
        except OSError as error:
            with contextlib.suppress(OSError):
                return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="eagre-programs-"))), error
            return None, error

    def _remove_abandoned(self) -> None:
        """Removes private folders of processes that were killed; a living process holds a lock on its own."""
        for folder in self._folder.glob(f"{_PRIVATE_PREFIX}*"):
            with contextlib.suppress(OSError), _locked(folder):
                shutil.rmtree(folder, ignore_errors=True)

    def _evict(self, spared: Path) -> None:
        """Removes the configurations used longest ago until the store is within its limit.

        The folder may hold other things too; only what the store has made is touched.
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


@contextlib.contextmanager
def _private_folder(parent: Path) -> Iterator[Path]:
    """A folder of this process, in the file system of the store, so that links into it work; raises OSError."""
    with contextlib.ExitStack() as stack:
        folder = _new_locked_folder(parent, stack)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _new_locked_folder(parent: Path, stack: contextlib.ExitStack) -> Path:
    """Makes a folder and holds its lock until the end of `stack`.

    Between the two, another process may take the folder for an abandoned one and remove it. Then there is another
    attempt.
    """
    for _ in range(_MOST_ATTEMPTS):
        folder = Path(tempfile.mkdtemp(prefix=_PRIVATE_PREFIX, dir=parent))
        with contextlib.suppress(BlockingIOError, FileNotFoundError), contextlib.ExitStack() as attempt:
            descriptor = attempt.enter_context(_locked(folder))
            if os.path.samestat(os.fstat(descriptor), folder.stat()):
                stack.enter_context(attempt.pop_all())
                return folder
    raise BlockingIOError(f"{parent}: other processes remove every new folder")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[int]:
    """Holds the lock of a folder until the process ends at the latest, and gives its descriptor; raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield descriptor
    finally:
        os.close(descriptor)


def _lend(entries: Path, private: Path) -> int:
    """Links the sound entries of a configuration into a private folder, and returns the number of damaged ones.

    Damaged entries are removed, so that the compile that follows replaces them.
    """
    num_damaged = 0
    with contextlib.suppress(OSError):  # the folder may not exist on a disk that cannot be written
        for path in sorted(entries.iterdir()):
            name, _, digest = path.name.rpartition(".")
            with contextlib.suppress(OSError):
                content = path.read_bytes()
                if not name.endswith(ENTRY_SUFFIX) or _digest(content) != digest:
                    num_damaged += name.endswith(ENTRY_SUFFIX)
                    path.unlink()
                else:
                    _link_or_copy(path, private / name, content)
    return num_damaged


def _link_or_copy(path: Path, to: Path, content: bytes) -> None:
    with contextlib.suppress(OSError):  # another file system, or one without links
        os.link(path, to)
        return
    try:
        to.write_bytes(content)
    except OSError:
        to.unlink(missing_ok=True)  # it may be cut short
        raise


def _publish(added: Sequence[Path], entries: Path, error: OSError | None) -> OSError | None:
    """Moves the entries that JAX has added into the store; returns why one of them is not kept, or None.

    Args:
        error: why the store cannot be written, if that is known.
    """
    if error is not None or not added:
        return error if added else None
    try:
        for path in added:
            entries.mkdir(parents=True, exist_ok=True)  # another process may have evicted the configuration
            digest = _digest(path.read_bytes())
            for old in entries.glob(f"{path.name}.*"):  # unusable, or of a process that compiled the same meanwhile
                old.unlink(missing_ok=True)
            path.replace(entries / f"{path.name}.{digest}")
    except OSError as error:
        return error
    return None


def _log_problems(folder: Path, num_damaged: int, reason: OSError | str | None) -> None:
    if num_damaged:
        _log.warning("damaged programs in %s, which have been compiled anew: %d", folder, num_damaged)
    if reason is not None:
        _log.warning("compiled programs are not kept in %s, so the next start compiles them again: %s", folder, reason)


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=_DIGEST_LENGTH // 2).hexdigest()
