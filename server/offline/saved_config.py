"""The saved configuration of an offline model: its name and hash, and the engine's settings.

One file, `eagre.json`, without weights:

    {
      "format": "eagre-llm",
      "version": 1,
      "model": {"name": "smollm2-135m-instruct", "sha256": "b179…", "size": 98362432},
      "engine": {"dtype": "float32", "max_num_seqs": 64, …}
    }

`name` is the name of a built-in model or of one of the Hub, or the absolute path of a GGUF file or of a model folder.
The SHA-256 of a folder, or of a GGUF model in shards, is that of the list of its files, each line as `sha256sum` writes
it.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import orjson

from engine.interface.config import EngineConfig
from engine.interface.regular_file import open_regular
from engine.interface.types import Progress
from engine.weights.formats.gguf_shards import shard_paths
from server.model_sources.builtin_models import BUILTIN_MODELS
from server.model_sources.model_store import ensure_model, is_from_hub
from server.startup.progress import silent

FILE_NAME = "eagre.json"
FORMAT = "eagre-llm"
VERSION = 1

# The cache folder of compiled programs depends on the machine.
_NOT_SAVED = frozenset({"compilation_cache"})

_FOLDER_SUFFIXES = frozenset({".json", ".jinja", ".model", ".safetensors"})  # of what is read from a model folder


class SavedLLMError(ValueError):
    """The folder holds no configuration that can be used; the message says why."""


@dataclass(frozen=True, slots=True)
class SavedConfig:
    """The content of the file."""

    model: str  # name of a built-in model or of one of the Hub, or absolute path of a GGUF file or a model folder
    sha256: str  # of the model's file, or of the list of its files
    size: int  # of the model's files, bytes
    engine: dict[str, Any]  # fields of EngineConfig

    @classmethod
    def of(cls, model: str, config: EngineConfig) -> SavedConfig:
        """Reads the model's files for their hash; raises ModelStoreError or OSError where it cannot."""
        engine = {name: value for name, value in asdict(config).items() if name not in _NOT_SAVED}
        builtin = BUILTIN_MODELS.get(model)
        if builtin is not None:
            return cls(model, builtin.sha256, builtin.size, engine)
        path = ensure_model(model, silent).absolute()
        return cls(model if is_from_hub(model) else str(path), *_digest(path), engine)

    def write(self, folder: Path) -> Path:
        """Creates the folder if it is missing; returns the file written."""
        folder.mkdir(parents=True, exist_ok=True)
        model = {"name": self.model, "sha256": self.sha256, "size": self.size}
        content = {"format": FORMAT, "version": VERSION, "model": model, "engine": self.engine}
        path = folder / FILE_NAME
        path.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
        return path

    @classmethod
    def read(cls, folder: Path) -> SavedConfig:
        """Reads the file; raises SavedLLMError if it is missing, damaged or of another version."""
        path = folder / FILE_NAME
        try:
            with open_regular(path) as file:
                content = orjson.loads(file.read())
        except OSError as error:
            raise SavedLLMError(f"{path} cannot be read: {error.strerror}") from error
        except orjson.JSONDecodeError as error:
            raise SavedLLMError(f"{path} is damaged: {error}") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise SavedLLMError(f"{path} is no saved model: its format is not {FORMAT!r}")
        if content.get("version") != VERSION:
            raise SavedLLMError(f"{path} has version {content.get('version')!r}; this release reads version {VERSION}")
        match content:
            case {"model": {"name": str(name), "sha256": str(sha256), "size": int(size)}, "engine": dict(engine)}:
                pass
            case _:
                raise SavedLLMError(f"{path} is damaged: model (name, sha256, size) or engine is missing")
        unknown = engine.keys() - {field.name for field in fields(EngineConfig)}
        if unknown:
            raise SavedLLMError(f"{path} has engine settings that this release does not know: {_list(unknown)}")
        return cls(name, sha256, size, {key: _as_setting(value) for key, value in engine.items()})

    def check_model(self, model: str, progress: Progress) -> None:
        """Pulls `model` if missing and compares it with the saved one; raises SavedLLMError or ModelStoreError."""
        builtin = BUILTIN_MODELS.get(model)
        path = ensure_model(model, progress)
        if builtin is not None:  # `ensure_model` has compared the file with this table
            sha256, size = builtin.sha256, builtin.size
        elif (size := _size(path)) != self.size:
            raise SavedLLMError(f"{model} has {size} bytes; the saved model has {self.size}")
        else:
            progress("verify", 0, self.size)
            sha256, size = _digest(path)
            progress("verify", size, size)
        if (sha256, size) != (self.sha256, self.size):
            raise SavedLLMError(f"{model} has the SHA-256 {sha256}; the saved model has {self.sha256}")


def _files(path: Path) -> list[Path]:
    """The file itself or all its shards, or the files of a model folder in the order of their names."""
    if not path.is_dir():
        return shard_paths(path)
    files = (file for file in path.iterdir() if file.suffix in _FOLDER_SUFFIXES and file.name != FILE_NAME)
    return sorted(file for file in files if file.is_file())


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in _files(path))


def _digest(path: Path) -> tuple[str, int]:
    """SHA-256 and size of a file, or of the list of a model's files where it has several."""
    files = _files(path)
    if files == [path]:
        return _file_digest(path)
    listing, size = hashlib.sha256(), 0
    for file in files:
        sha256, num_bytes = _file_digest(file)
        listing.update(f"{sha256}  ".encode() + os.fsencode(file.name) + b"\n")
        size += num_bytes
    return listing.hexdigest(), size


def _file_digest(path: Path) -> tuple[str, int]:
    with open_regular(path) as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return sha256, file.tell()


def _as_setting(value: Any) -> Any:
    """A list as a tuple: JSON has no tuples, and a frozen configuration holds no lists."""
    return tuple(value) if isinstance(value, list) else value


def _list(names: set[str]) -> str:
    return ", ".join(sorted(names))
