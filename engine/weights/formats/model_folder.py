"""A model's folder in Hugging Face's layout and its JSON files, without JAX or numpy, for engine and server."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from engine.interface.errors import ModelError
from engine.interface.regular_file import open_regular
from engine.weights.formats.fields import Fields

CONFIG = "config.json"
MODULES = "modules.json"  # of an encoder of sentences
MAX_TEXT_BYTES = 256 << 20  # of a text file; the largest vocabularies take 40 MB
MAX_JSON_BYTES = 64 << 20  # of JSON that becomes Python's objects, which take many times as much memory

_HALF_A_PAIR = re.compile(r"\\u[dD][89a-fA-F]")  # an escape that may be half of a surrogate pair


def read_limited(path: Path, max_bytes: int = MAX_TEXT_BYTES) -> bytes:
    """The content of a file; raises ModelError if it cannot be read, or is larger than `max_bytes`."""
    try:
        with open_regular(path) as file:
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > max_bytes:
        raise ModelError(f"{path} is larger than {max_bytes} bytes, the limit for such a file")
    return content


class SentenceModule(NamedTuple):
    """A step from a text to its embedding, as sentence-transformers lists them in `modules.json`."""

    kind: str  # the name of its class
    place: str  # its folder within that of the model; empty for the model itself


class JsonFile(Fields):
    """A JSON object read from a file. Null counts as absent. Each method raises ModelError where a type is wrong."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self.path = path
        self._values = values

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._values)

    def value(self, key: str) -> Any:
        return self._values.get(key)

    def table(self, key: str) -> JsonFile | None:
        """An object within the object."""
        value = self.value(key)
        if value is None:
            return None
        if isinstance(value, dict):
            return JsonFile(self.path, value)
        raise self.error(key, "it must be an object")

    def with_values(self, values: Mapping[str, Any]) -> JsonFile:
        """The same with other values for some keys."""
        return JsonFile(self.path, {**self._values, **values})

    def with_defaults(self, defaults: Mapping[str, Any]) -> JsonFile:
        """The same with values for keys that are absent; an explicit null stays one."""
        return JsonFile(self.path, {**defaults, **self._values})

    def error(self, key: str, demand: str) -> ModelError:
        return ModelError(f"{self.path}: {key} is {_shortened(self.value(key))}; {demand}")

    def missing(self, key: str) -> ModelError:
        return ModelError(f"{self.path} lacks {key}")


class Folder:
    """A folder whose files are read within limits."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def file(self, name: str) -> Path | None:
        """The path of a regular file in the folder, or None; raises ModelError if the folder cannot be searched."""
        path = self.path / name
        try:
            return path if path.is_file() else None
        except OSError as error:
            raise ModelError(f"{path} cannot be read: {error.strerror}") from error

    def text(self, name: str, max_bytes: int = MAX_TEXT_BYTES) -> str | None:
        """The content of a UTF-8 file of at most `max_bytes`, None where there is none; raises ModelError."""
        path = self.file(name)
        if path is None:
            return None
        try:
            return read_limited(path, max_bytes).decode("utf-8")
        except UnicodeDecodeError as error:
            raise ModelError(f"{path} is damaged: it is not UTF-8: {error}") from error

    def modules(self) -> list[SentenceModule]:
        """The modules of an encoder of sentences; empty where the folder has no list. Raises ModelError."""
        text = self.text(MODULES, 1 << 20)
        if text is None:
            return []
        path = self.path / MODULES
        try:
            entries = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ModelError(f"{path} is damaged: it is no JSON: {error}") from error
        modules = []
        for entry in entries if isinstance(entries, list) else [None]:
            match entry:
                case {"type": str(kind), "path": str(place)} if ".." not in place and not place.startswith("/"):
                    modules.append(SentenceModule(kind.rpartition(".")[2], place))
                case _:
                    raise ModelError(f"{path} is damaged: it must list modules with type and path")
        if not modules:
            raise ModelError(f"{path} lists no module")
        return modules

    def json(self, name: str) -> JsonFile | None:
        """The object in a JSON file, or None where there is none; raises ModelError as `text` and for other JSON."""
        text = self.text(name, MAX_JSON_BYTES)
        if text is None:
            return None
        path = self.path / name
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ModelError(f"{path} is damaged: it is no JSON: {error}") from error
        if not isinstance(values, dict):
            raise ModelError(f"{path} is damaged: it is no JSON object but {type(values).__name__}")
        if _HALF_A_PAIR.search(text):
            _refuse_half_pairs(path, values)
        return JsonFile(path, values)


class ModelFolder(Folder):
    """A folder with a `config.json` and other files."""

    def __init__(self, path: Path) -> None:
        """Raises ModelError if `config.json` is missing, damaged or cannot be read."""
        super().__init__(path)
        config = self.json(CONFIG)
        if config is None:
            raise ModelError(f"{path} is no model folder: it has no {CONFIG}")
        self.config = config


def _refuse_half_pairs(path: Path, values: object) -> None:
    """Raises ModelError if a text is no valid Unicode, which no tokenizer and no template accepts."""
    try:
        json.dumps(values, ensure_ascii=False).encode("utf-8")
    except (UnicodeEncodeError, RecursionError) as error:
        raise ModelError(f"{path} is damaged: a text in it has half of a surrogate pair, or is too deep") from error


def _shortened(value: object) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except RecursionError:  # reading takes a little less of the stack than writing
        return "a value of many levels"
    return text if len(text) <= 80 else text[:77] + "..."
