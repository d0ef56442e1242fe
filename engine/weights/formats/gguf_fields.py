"""Typed access to the fields of a GGUF file, without JAX, for engine and server."""

from __future__ import annotations

from typing import Any

from engine.interface.errors import ModelError
from engine.weights.formats.fields import MAX_INTEGER, Fields
from engine.weights.formats.gguf_file import GGUFFile


class GGUFFields(Fields):
    """The fields of a file's own architecture, by their keys without its name in front."""

    def __init__(self, file: GGUFFile, architecture: str) -> None:
        self._file = file
        self._prefix = architecture

    def value(self, key: str) -> Any:
        return self._file.value(f"{self._prefix}.{key}")

    def integer(self, key: str, *, least: int = 1, most: int = MAX_INTEGER) -> int | None:
        """Numbers of any type count as integers where they are whole."""
        value = self.positive_number(key)
        if value is None:
            return None
        if value != int(value) or not least <= value <= most:
            raise self.error(key, "it must be an int32 above 0" if most == MAX_INTEGER else f"it may be at most {most}")
        return int(value)

    def error(self, key: str, demand: str) -> ModelError:
        return ModelError(f"the field '{self._prefix}.{key}' is {self.value(key)}; {demand}")

    def missing(self, key: str) -> ModelError:
        return ModelError(f"the file has no field '{self._prefix}.{key}' of one value")
