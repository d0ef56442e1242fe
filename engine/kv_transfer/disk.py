"""KV offload to a folder of the local disk, so that the prefix cache survives a restart."""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from secrets import token_hex

import numpy as np

from engine.kv_transfer.page_file import SUFFIX, DamagedPage, read_page_file, write_page_file
from engine.kv_transfer.page_folder import PageFolder, page_names

_REFRESH_SECONDS = 10.0  # between two looks for the pages of other servers
_RETRY_SECONDS = 60.0  # after a failure of the disk; each one is one line in the log
_TOUCH_STEP = 1e-6  # seconds; of pages used together, the tail of a prefix leaves before its head

_log = logging.getLogger(__name__)


class DiskConnector:
    """The `KVConnector` of the pages with one fingerprint; a failing disk only costs the time to compute again."""

    def __init__(
        self, folder: PageFolder, key: str, page_bytes: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Lists the pages that are there, of `page_bytes` each; `key` is the fingerprint in 32 hexadecimal digits."""
        self.num_damaged = 0  # pages that were not what was written
        self._folder = folder
        self._shelf = folder.path / key
        self._key = key
        self._page_bytes = page_bytes
        self._clock = clock
        self._held: set[bytes] = set()
        self._lock = threading.Lock()  # of the folder's and this object's books
        self._looked_at = -_REFRESH_SECONDS
        self._modified_ns: int | None = None  # of the shelf when it was looked at
        self._retry_at = 0.0
        try:
            folder.shelf(key)
            folder.has_room(0)  # a folder that is too full after a change of its limit is emptied now
        except OSError as error:
            self._fail("written", error)
        self.refresh()

    @property
    def num_bytes(self) -> int:
        """Of the whole folder, as far as is known."""
        return self._folder.num_bytes

    @property
    def num_pages(self) -> int:
        """Pages with this fingerprint, as far as is known."""
        return len(self._held)

    def names(self) -> set[bytes]:
        return self._held.copy()

    def holds(self, name: bytes) -> bool:
        return name in self._held

    def load(self, name: bytes) -> np.ndarray | None:
        """As `KVConnector.load`; a damaged page is removed."""
        path = self._path(name)
        try:
            return read_page_file(path, name, self._page_bytes)
        except FileNotFoundError:
            self._held.discard(name)  # another server has removed it
        except DamagedPage as error:
            self.num_damaged += 1
            _log.warning("a kept page is damaged and will be computed again: %s", error)
            self.forget([name])
        except OSError as error:
            self._held.discard(name)
            self._fail("read", error)
        return None

    def store(self, name: bytes, content: Sequence[np.ndarray]) -> bool:
        if name in self._held:
            return True
        with self._lock:
            if self._clock() < self._retry_at:
                return False
            try:
                if not self._folder.has_room(self._page_bytes):
                    return False  # others write faster than the least recently used pages leave
                self._folder.shelf(self._key)
                # Other servers may write the same page, from other machines too.
                self._folder.wrote(write_page_file(self._path(name), name, content, attempt=token_hex(8)))
            except OSError as error:
                self._fail("written", error)
                return False
        self._held.add(name)
        return True

    def touch(self, names: Sequence[bytes]) -> None:
        now = time.time()
        for index, name in enumerate(names):
            used_at = now - index * _TOUCH_STEP
            with contextlib.suppress(OSError):  # it is gone, or the disk is read-only
                os.utime(self._path(name), (used_at, used_at))

    def forget(self, names: Sequence[bytes]) -> None:
        for name in names:
            self._held.discard(name)
            with contextlib.suppress(OSError):
                self._path(name).unlink(missing_ok=True)

    def clear(self) -> None:
        names: set[bytes] = set()
        with contextlib.suppress(OSError):
            names = page_names(self._shelf)
        self.forget([*names])

    def refresh(self) -> None:
        now = self._clock()
        if now - self._looked_at < _REFRESH_SECONDS:
            return
        self._looked_at = now
        try:
            modified_ns = self._shelf.stat().st_mtime_ns
            if modified_ns != self._modified_ns:
                self._held = page_names(self._shelf)
                self._modified_ns = modified_ns
        except FileNotFoundError:
            self._held = set()
        except OSError as error:
            self._fail("read", error)

    def _path(self, name: bytes) -> Path:
        return self._shelf / (name.hex() + SUFFIX)

    def _fail(self, done: str, error: OSError) -> None:
        """Logs a failure of the disk, and stops attempts for a while."""
        now = self._clock()
        if now >= self._retry_at:
            self._retry_at = now + _RETRY_SECONDS
            _log.warning(
                "pages cannot be %s in %s, so prompts are computed; the next attempt is in %d s: %s",
                done, self._folder.path, _RETRY_SECONDS, error,
            )  # fmt: skip
