"""Names of models on the Hugging Face Hub, and records of which downloaded files each name means.

The files lie in the cache of `huggingface_hub`. A record in Eagre's cache folder, `hub/HASH.json`, says that all of a
model have arrived, so that it starts without the network, and is the same until it is pulled anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from server.model_sources.cache_folder import cache_folder

_ID = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(?::(?P<file>[^:@]+))?(?:@(?P<revision>[^:@]+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class HubId:
    """`owner/name[:file-or-quant][@revision]`, such as `bartowski/SmolLM2-360M-Instruct-GGUF:Q4_K_M@main`."""

    repository: str  # owner/name
    file: str | None = None  # a GGUF file of the repository, or the quantisation in the name of one
    revision: str | None = None  # a branch, a tag or a commit; None is the main branch

    @classmethod
    def parse(cls, text: str) -> HubId | None:
        match = _ID.fullmatch(text)
        if match is None or any(set(word) == {"."} for word in match["repository"].split("/")):
            return None
        return cls(match["repository"], match["file"], match["revision"])

    def __str__(self) -> str:
        file = "" if self.file is None else f":{self.file}"
        return self.repository + file + ("" if self.revision is None else f"@{self.revision}")


@dataclass(frozen=True, slots=True)
class HubRecord:
    """A model of the Hub that has been downloaded completely."""

    name: str  # the HubId as text
    snapshot: str  # absolute path of the folder with the files
    files: tuple[str, ...]  # paths within that folder
    main: str | None  # the GGUF file that opens the model; None where the folder is the model

    @property
    def path(self) -> Path:
        """The GGUF file or the folder."""
        return Path(self.snapshot) if self.main is None else Path(self.snapshot, self.main)

    @property
    def is_complete(self) -> bool:
        """Whether all files are still there."""
        return all(Path(self.snapshot, name).is_file() for name in self.files)

    def write(self) -> None:
        path = _path(self.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")  # two processes may write the same record at once
        partial.write_bytes(orjson.dumps(asdict(self)))
        os.replace(partial, path)


def find_record(hub_id: HubId) -> HubRecord | None:
    """The record of a model, or None where it was never downloaded or a file of it is missing."""
    record = _read(_path(str(hub_id)))
    return record if record is not None and record.is_complete else None


def all_records() -> Iterator[HubRecord]:
    """All records in the order of the models' names, also of models whose files are missing."""
    found = (_read(path) for path in (cache_folder() / "hub").glob("*.json"))
    yield from sorted((record for record in found if record is not None), key=lambda record: record.name)


def _path(name: str) -> Path:
    return cache_folder() / "hub" / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.json"


def _read(path: Path) -> HubRecord | None:
    """None where there is no record, or none that this release can read."""
    with contextlib.suppress(OSError, orjson.JSONDecodeError):
        match orjson.loads(path.read_bytes()):
            case {"name": str(name), "snapshot": str(snapshot), "files": [*files], "main": str() | None as main}:
                return HubRecord(name, snapshot, tuple(map(str, files)), main)
    return None
