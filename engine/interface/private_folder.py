"""Temporary folders of one process, which a later process removes if this one is killed.

Each is locked while its process lives, and the system releases a lock whatever ends the process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

TEMPORARY_PREFIX = "eagre-live-"  # of folders among the system's temporary files

_MOST_ATTEMPTS = 100  # at a folder that no other process takes for an abandoned one


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder among the system's temporary files, for this user alone; those of killed processes are removed.

    Raises OSError.
    """
    parent = Path(tempfile.gettempdir())
    remove_abandoned(parent, TEMPORARY_PREFIX)
    with private_folder(parent, TEMPORARY_PREFIX) as folder:
        yield folder


@contextlib.contextmanager
def private_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """A new folder in `parent`, which is removed with all that is in it at the end; raises OSError."""
    with contextlib.ExitStack() as stack:
        folder = _new_locked_folder(parent, prefix, stack)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned(parent: Path, prefix: str) -> None:
    """Removes the private folders of processes that were killed, but not those of other users."""
    for folder in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError), _locked(folder) as descriptor:
            if os.fstat(descriptor).st_uid == os.getuid():
                shutil.rmtree(folder, ignore_errors=True)


def _new_locked_folder(parent: Path, prefix: str, stack: contextlib.ExitStack) -> Path:
    """Makes a folder and holds its lock until the end of `stack`.

    Between the two, another process may take the folder for an abandoned one and remove it. Then there is another
    attempt.
    """
    for _ in range(_MOST_ATTEMPTS):
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        with contextlib.suppress(BlockingIOError, FileNotFoundError), contextlib.ExitStack() as attempt:
            descriptor = attempt.enter_context(_locked(folder))
            if os.path.samestat(os.fstat(descriptor), folder.stat()):
                stack.enter_context(attempt.pop_all())
                return folder
    raise BlockingIOError(f"{parent}: other processes remove every new folder")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[int]:
    """Holds the lock of a folder until the process ends at the latest, and gives its descriptor; raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield descriptor
    finally:
        os.close(descriptor)
