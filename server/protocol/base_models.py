"""The base of every part of a request's body. Values are checked and never converted."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator

from server.protocol.errors import UnknownField


class StrictModel(BaseModel):
    """Unknown names are refused; "5" is not 5 and true is not 1."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _no_more_names_than_fields(cls, value: Any) -> Any:
        """Finds an unknown name without pydantic, which makes an error of each, were there a hundred thousand."""
        if isinstance(value, dict) and len(value) > len(cls.model_fields):
            known = {field.alias or name for name, field in cls.model_fields.items()}
            raise UnknownField(next(name for name in value if name not in known))
        return value


def bounded(name: str, most: int) -> BeforeValidator:
    """Checks a list's length before its items.

    `Field(fail_fast=True)` belongs beside it, so that one bad item ends the check.

    Args:
        name: of the parameter, which the error names with the limit.
    """

    def check(value: Any) -> Any:
        if isinstance(value, list) and len(value) > most:
            raise ValueError(f"{name} has {len(value)} entries; at most {most} are allowed")
        return value

    return BeforeValidator(check)


class LenientModel(BaseModel):
    """Unknown names are passed over: Anthropic's clients send more of them with each version. Types are strict."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)
