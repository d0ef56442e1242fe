"""A model's folder as Hugging Face lays it out, and the JSON in it.

Both sides read it, the engine for sizes and weights and the server for the vocabulary and the chat
template, so this module belongs to the border between them. It imports neither JAX nor numpy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ARCHITECTURE = "LlamaForCausalLM"  # the one that is served, by its name in transformers
CONFIG = "config.json"
MAX_INTEGER = (1 << 31) - 1  # of sizes and ids: what an int32 on the device holds


class ModelFolderError(ValueError):
    """The folder holds no model that can be served; the message names the file and says why."""


class JsonFile:
    """A JSON object read from a file, whose values are asked for by their kind. Null counts as absent.

    Each method raises ModelFolderError where the value is of another kind.
    """

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self.path = path
        self._values = values

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._values)

    def value(self, key: str) -> Any:
        """The value as JSON has it; None where it is absent."""
        return self._values.get(key)

    def text(self, key: str) -> str | None:
        value = self.value(key)
        if value is None or isinstance(value, str):
            return value
        raise self.error(key, "it must be a string")

    def flag(self, key: str) -> bool | None:
        value = self.value(key)
        if value is None or isinstance(value, bool):
            return value
        raise self.error(key, "it must be true or false")

    def table(self, key: str) -> JsonFile | None:
        """An object within the object."""
        value = self.value(key)
        if value is None:
            return None
        if isinstance(value, dict):
            return JsonFile(self.path, value)
        raise self.error(key, "it must be an object")

    def integer(self, key: str, *, least: int, most: int = MAX_INTEGER) -> int | None:
        value = self.value(key)
        if value is None:
            return None
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        raise self.error(key, f"it must be an integer from {least} to {most}")

    def required_integer(self, key: str, *, least: int, most: int = MAX_INTEGER) -> int:
        value = self.integer(key, least=least, most=most)
        if value is None:
            raise ModelFolderError(f"{self.path} lacks {key}")
        return value

    def positive_number(self, key: str) -> float | None:
        value = self.value(key)
        if value is None:
            return None
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf:
            return float(value)
        raise self.error(key, "it must be a number above 0")

    def error(self, key: str, demand: str) -> ModelFolderError:
        """An error to raise for the value of `key`."""
        return ModelFolderError(f"{self.path}: {key} is {_shortened(self.value(key))}; {demand}")


class ModelFolder:
    """A folder with the `config.json` of an architecture that is served, and what else lies in it."""

    def __init__(self, path: Path) -> None:
        """Raises:
        ModelFolderError: `config.json` is missing, damaged or cannot be read, or of another architecture.
        """
        self.path = path
        config = self.json(CONFIG)
        if config is None:
            raise ModelFolderError(f"{path} is no model folder: it has no {CONFIG}")
        # First of all: the fields and files of other architectures have other names.
        if config.value("architectures") != [ARCHITECTURE]:
            raise config.error("architectures", f'this version serves ["{ARCHITECTURE}"]')
        self.config = config

    def file(self, name: str) -> Path | None:
        """The path of a regular file in the folder, or None where there is none of that name.

        Raises:
            ModelFolderError: the folder cannot be searched.
        """
        path = self.path / name
        try:
            return path if path.is_file() else None
        except OSError as error:
            raise ModelFolderError(f"{path} cannot be read: {error.strerror}") from error

    def text(self, name: str) -> str | None:
        """The content of a text file, or None where there is none of that name.

        Raises:
            ModelFolderError: it cannot be read, or it is not UTF-8.
        """
        path = self.file(name)
        if path is None:
            return None
        try:
            return path.read_text(encoding="utf-8")
        except OSError as error:
            raise ModelFolderError(f"{path} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ModelFolderError(f"{path} is damaged: it is not UTF-8: {error}") from error

    def json(self, name: str) -> JsonFile | None:
        """The object in a JSON file, or None where there is none of that name.

        Raises:
            ModelFolderError: it cannot be read, or it is no JSON object.
        """
        text = self.text(name)
        if text is None:
            return None
        path = self.path / name
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ModelFolderError(f"{path} is damaged: it is no JSON: {error}") from error
        if not isinstance(values, dict):
            raise ModelFolderError(f"{path} is damaged: it is no JSON object but {type(values).__name__}")
        return JsonFile(path, values)


def _shortened(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."
