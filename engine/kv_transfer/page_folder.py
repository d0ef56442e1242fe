"""The folder of stored pages: of several models, computed in several ways, within one limit of bytes.

    FOLDER/0f3a…/5c81….page    a folder for each fingerprint, in it a file for each page, by its name in hexadecimal

A file's time of modification says when its page was used last. Any number of servers may share the folder: files appear
by renaming and vanish by unlinking, and a missing file is no error.
"""

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from engine.kv_transfer.page_file import SUFFIX, TEMPORARY_PREFIX

# The least recently used pages leave when so large a share of the limit has been written since the last look. The room
# that they leave is as large, so that one server alone never exceeds the limit.
_SHARE_BETWEEN_LOOKS = 16
# An unfinished file this old is of a process that was killed; an empty folder is of a model that is no longer used.
_ABANDONED_SECONDS = 3600.0

_KEY = re.compile(r"[0-9a-f]{32}")
_PAGE = re.compile(r"[0-9a-f]{64}" + re.escape(SUFFIX))


class _File(NamedTuple):
    used_at: float  # seconds of the epoch
    size: int  # bytes
    path: str


class PageFolder:
    """Keeps the folder within its limit. Its methods block; one thread at a time may call them."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path = path
        self.num_bytes = 0  # at the last look, and what this process has written since then
        self._max_bytes = max_bytes
        self._unseen_bytes: int | None = None  # written since the last look; None before the first

    def shelf(self, key: str) -> Path:
        """The owner's folder of the pages with one fingerprint, made if it is not there; raises OSError."""
        shelf = self.path / key
        shelf.mkdir(mode=0o700, parents=True, exist_ok=True)
        return shelf

    def has_room(self, size: int) -> bool:
        """Whether a file of so many bytes may be written now, after evictions; raises OSError."""
        if size > self._max_bytes:
            return False  # and no page of another model leaves in vain
        step = self._max_bytes // _SHARE_BETWEEN_LOOKS
        if self._unseen_bytes is None or self._unseen_bytes + size > step:
            self._evict(self._max_bytes - max(step, size))
        return self.num_bytes + size <= self._max_bytes

    def wrote(self, size: int) -> None:
        """Counts a file that was written."""
        self.num_bytes += size
        self._unseen_bytes = (self._unseen_bytes or 0) + size

    def _evict(self, most_bytes: int) -> None:
        """Removes the least recently used pages until there are `most_bytes` left."""
        files = sorted(self._files())
        total = sum(file.size for file in files)
        for file in files:
            if total <= most_bytes:
                break
            with contextlib.suppress(FileNotFoundError):  # another server was faster
                os.unlink(file.path)
            total -= file.size
        self.num_bytes, self._unseen_bytes = total, 0

    def _files(self) -> Iterator[_File]:
        """All pages; raises OSError. Unfinished files are removed; other files in the folder are left alone."""
        now = time.time()
        for shelf in self._shelves():
            is_empty = True
            for entry in _entries(shelf):
                is_empty = False
                is_page = _PAGE.fullmatch(entry.name) is not None
                if not (is_page or entry.name.startswith(TEMPORARY_PREFIX)):
                    continue
                with contextlib.suppress(FileNotFoundError):
                    found = entry.stat(follow_symlinks=False)
                    if not is_page and now - found.st_mtime > _ABANDONED_SECONDS:
                        os.unlink(entry.path)
                    elif is_page:
                        yield _File(found.st_mtime, found.st_size, entry.path)
            with contextlib.suppress(OSError):
                if is_empty and now - os.stat(shelf).st_mtime > _ABANDONED_SECONDS:
                    os.rmdir(shelf)

    def _shelves(self) -> list[str]:
        with os.scandir(self.path) as entries:
            return [e.path for e in entries if _KEY.fullmatch(e.name) and e.is_dir(follow_symlinks=False)]


def page_names(shelf: Path) -> set[bytes]:
    """The names of the pages in a folder of one fingerprint; raises OSError."""
    with os.scandir(shelf) as entries:
        return {bytes.fromhex(e.name.removesuffix(SUFFIX)) for e in entries if _PAGE.fullmatch(e.name)}


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except FileNotFoundError:
        return []
