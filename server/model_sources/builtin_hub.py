"""Downloads a built-in model from the Hugging Face Hub, from the byte at which an earlier download ended.

The bytes come from wherever the Hub stores them; their hashes are those that this release states. The library's
variables count: HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE, and those of proxies.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable, Iterator, Sequence
from http.client import OK
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import hf_hub_url
from huggingface_hub.utils import build_hf_headers, get_session  # type: ignore[attr-defined]

from server.model_sources.builtin_parts import FolderFile
from server.model_sources.hub_records import HubId

if TYPE_CHECKING:
    from server.model_sources.partial_file import PartialFile

TIMEOUT_S = 15.0  # to connect, and of silence
MOST_FRUITLESS = 3  # downloads in a row that ended before one more part had arrived
_FULL = (errno.ENOSPC, errno.EDQUOT)


class HubRefused(Exception):
    """The Hub does not give the file, or another one; the message says why."""


def download_parts(hub_id: HubId, partial: PartialFile) -> None:
    """Appends the missing parts of a model; a broken connection is opened again. It blocks.

    Raises HubRefused where parts are missing at the end, and OSError where the disk is full.
    """
    num_fruitless = 0
    while True:
        before = partial.num_parts
        try:
            if not _download(hub_id, partial):
                raise HubRefused("its file has another SHA-256 than this release states")
            return
        except HubRefused:
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno in _FULL:
                raise
            reason = _first_line(error)  # what is raised depends on the library's own HTTP library
        num_fruitless = num_fruitless + 1 if partial.num_parts == before else 0
        if num_fruitless == MOST_FRUITLESS:
            raise HubRefused(reason)


def _download(hub_id: HubId, partial: PartialFile) -> bool:
    """False where a part has another hash."""
    assert hub_id.file is not None
    start = partial.size
    headers = build_hf_headers(library_name="eagre") | {"Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    url = hf_hub_url(hub_id.repository, hub_id.file, revision=hub_id.revision)
    with get_session().stream("GET", url, headers=headers, timeout=TIMEOUT_S, follow_redirects=True) as response:
        if response.status_code != (206 if start else 200):
            raise HubRefused(f"it answered with status {response.status_code}")
        return partial.extend(_Body(response.iter_bytes(1 << 20)))


def download_files(hub_id: HubId, files: Sequence[FolderFile], folder: Path, count: Callable[[int], None]) -> None:
    """Downloads the files of a model folder; `count` is called with the bytes that have come. It blocks.

    Raises HubRefused where one of them cannot be had or is another one, and OSError where the disk is full.
    """
    headers = build_hf_headers(library_name="eagre") | {"Accept-Encoding": "identity"}
    for file in files:
        url = hf_hub_url(hub_id.repository, file.name, revision=hub_id.revision)
        try:
            with get_session().stream(
                "GET", url, headers=headers, timeout=TIMEOUT_S, follow_redirects=True
            ) as response:
                if response.status_code != OK:
                    raise HubRefused(f"it answered with status {response.status_code}")
                _write_file(file, folder / file.name, response.iter_bytes(1 << 20), count)
        except HubRefused:
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno in _FULL:
                raise
            raise HubRefused(_first_line(error)) from error


def _write_file(file: FolderFile, path: Path, chunks: Iterator[bytes], count: Callable[[int], None]) -> None:
    """Raises HubRefused where these are not the bytes of the file."""
    seen, size = hashlib.sha256(), 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as target:
        for chunk in chunks:
            size += len(chunk)
            if size > file.size:
                break
            seen.update(chunk)
            target.write(chunk)
            count(len(chunk))
    if size != file.size or seen.hexdigest() != file.sha256:
        raise HubRefused(f"its {file.name} has another SHA-256 than this release states")


class _Body:
    """The chunks of a response as a file."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def read(self, size: int = -1) -> bytes:
        """At most `size` bytes, and none at the end."""
        data = self._rest or next(self._chunks, b"")
        if size < 0:
            size = len(data)
        self._rest = data[size:]
        return data[:size]


def _first_line(error: Exception) -> str:
    return next((line.strip(" .") for line in str(error).splitlines() if line.strip(" .")), type(error).__name__)
