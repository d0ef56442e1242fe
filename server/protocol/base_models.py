"""Pydantic base classes of request bodies. Values are validated and never converted."""

from collections.abc import Collection
from typing import Any, ClassVar, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, PrivateAttr, model_validator

from server.protocol.errors import UnknownField
from server.protocol.unknown_fields import UnknownFields, Unsupported


class StrictModel(BaseModel):
    """Rejects unknown fields and converts no types: "5" is not 5 and true is not 1."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _no_more_names_than_fields(cls, value: Any) -> Any:
        """Finds an unknown name without pydantic, which makes an error of each, were there a hundred thousand."""
        if isinstance(value, dict) and len(value) > len(cls.model_fields):
            known = {field.alias or name for name, field in cls.model_fields.items()}
            raise UnknownField(next(name for name in value if name not in known))
        return value


class LenientModel(BaseModel):
    """Ignores unknown fields: Anthropic's clients send more of them with each version. Types are strict."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class RequestBody(StrictModel):
    """A whole body, in which unknown fields are ignored with a warning, or rejected (see `UnknownFields`)."""

    UNSUPPORTED: ClassVar[Unsupported] = {}
    _ignored: tuple[str, ...] = PrivateAttr(default=())

    @classmethod
    def parse(cls, body: Any) -> Self:
        """Validates a decoded JSON body; raises ApiError, FieldError or ValidationError."""
        unknown = UnknownFields()
        known = unknown.drop_from(body, cls.known_fields(), cls.UNSUPPORTED)
        request = cls.model_validate(known, context=unknown)
        request._ignored = tuple(unknown.ignored)
        return request

    @classmethod
    def known_fields(cls) -> Collection[str]:
        """The names that this body may have."""
        return cls.model_fields

    @property
    def ignored(self) -> tuple[str, ...]:
        """The unknown parameters of the body, by their paths."""
        return self._ignored


def bounded(name: str, most: int) -> BeforeValidator:
    """Checks a list's length before its items, beside `Field(fail_fast=True)`, so that one bad item ends the check."""

    def check(value: Any) -> Any:
        if isinstance(value, list) and len(value) > most:
            raise ValueError(f"{name} has {len(value)} entries; at most {most} are allowed")
        return value

    return BeforeValidator(check)
