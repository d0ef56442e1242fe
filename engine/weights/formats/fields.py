"""Typed access to the fields of a model's configuration, in any format of files."""

import math
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any

from engine.interface.errors import ModelError

MAX_INTEGER = (1 << 31) - 1  # of sizes and ids: what an int32 on the device holds


class Fields(ABC):
    """Named values of one file. Each method raises ModelError where the value is of another type."""

    @abstractmethod
    def value(self, key: str) -> Any:
        """The value as the file has it; None where it is absent."""

    @abstractmethod
    def error(self, key: str, demand: str) -> ModelError:
        """An error for the value of `key`, which violates the demand."""

    @abstractmethod
    def missing(self, key: str) -> ModelError:
        """An error for a required `key` that is absent."""

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
            raise self.missing(key)
        return value

    def number(self, key: str) -> float | None:
        """Any finite number."""
        value = self.value(key)
        if value is None:
            return None
        if isinstance(value, int | float) and not isinstance(value, bool) and -math.inf < value < math.inf:
            with suppress(OverflowError):  # of an integer that no float can hold
                return float(value)
        raise self.error(key, "it must be a number")

    def positive_number(self, key: str) -> float | None:
        value = self.value(key)
        if value is None:
            return None
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf:
            with suppress(OverflowError):  # of an integer that no float can hold
                return float(value)
        raise self.error(key, "it must be a number above 0")

    def required_positive_number(self, key: str) -> float:
        value = self.positive_number(key)
        if value is None:
            raise self.missing(key)
        return value
