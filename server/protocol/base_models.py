"""Pydantic base classes of request bodies. Values are validated and never converted.

Validators are built at first use (`defer_build`): building all of them takes a tenth of a server's start. A server that
has been ready for a second builds the others in a worker thread (`build_validators`).
"""

from collections.abc import Collection, Iterator
from functools import cache
from types import UnionType
from typing import Annotated, Any, ClassVar, Self, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, PrivateAttr, ValidationInfo, model_validator

from server.protocol.errors import ApiError, UnknownField, UnsupportedField
from server.protocol.foreign_parameters import DEFAULTS_OF_PEERS, OF_ONE_ROUTE, OTHER_NAMES, Unsupported

MAX_IGNORED = 64  # unknown parameters of one body, its messages included
MAX_NAME_CHARS = 64  # of one name where it is repeated to the client
_LARGEST_EXACT = 2**53  # of integers that a double holds
_EMPTY: tuple[Any, ...] = ([], {}, "")


class StrictModel(BaseModel):
    """Rejects unknown fields and converts no types: "5" is not 5 and true is not 1."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)

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

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, defer_build=True)


def build_validators() -> None:
    """Builds the validators of all request bodies and of their parts that no request has needed so far."""
    waiting: list[type[BaseModel]] = [StrictModel, LenientModel]
    while waiting:
        model = waiting.pop()
        waiting += model.__subclasses__()
        if model.__module__.startswith("server."):
            model.model_rebuild()  # does nothing where the validator is complete


class UnknownFields:
    """Collects, over the parts of one body, the names that are ignored with a warning."""

    def __init__(self) -> None:
        self.ignored: list[str] = []  # in the order of the body, each once
        # Names that were compared with some fields and are none of them, by the id of the fields. The fields are stored
        # too, so that no others get this id.
        self._compared: dict[int, tuple[Collection[str], set[str]]] = {}

    def drop_from(self, part: Any, fields: Collection[str], unsupported: Unsupported, path: str = "") -> Any:
        """`part` of a body with only the names of `fields`; what is no JSON object is returned as it is.

        Args:
            unsupported: names that are rejected unless they have one of these values.
            path: of the part, with the dot that follows it, as ignored names are reported.

        Raises:
            UnsupportedField: one of `unsupported` has another value.
            UnknownField: a name is most likely a typo of one of `fields`.
            ApiError: the body has too many unknown parameters.
        """
        if not isinstance(part, dict):
            return part
        kept = {}
        for name, value in part.items():
            if name in fields:
                kept[name] = value
            elif name in unsupported:
                if value is not None and not any(_is_same(value, allowed) for allowed in unsupported[name]):
                    raise UnsupportedField(name, value)
            else:
                self._check_unknown(name, value, fields, path)
        return kept

    def add(self, name: str) -> None:
        """Reports a part of the body that is known and ignored."""
        if name not in self.ignored and len(self.ignored) < MAX_IGNORED:
            self.ignored.append(name)

    def _check_unknown(self, name: str, value: Any, fields: Collection[str], path: str) -> None:
        shown = path + name[:MAX_NAME_CHARS]
        _, compared = self._compared.setdefault(id(fields), (fields, set()))
        if shown in compared or _is_default(name, value):
            return  # four thousand messages may have the same name, which is compared once
        if name in OF_ONE_ROUTE:
            raise UnknownField(name)
        if name in OTHER_NAMES:
            raise UnknownField(name, OTHER_NAMES[name])
        if name not in DEFAULTS_OF_PEERS:
            meant = next((field for field in fields if is_typo(name, field)), None)
            if meant is not None:
                raise UnknownField(name, meant)
        compared.add(shown)
        if shown in self.ignored:
            return
        if len(self.ignored) == MAX_IGNORED:
            raise ApiError(
                f"the body has more than {MAX_IGNORED} unknown parameters, the limit; the last is {shown}",
                param=path + name,
                code="unknown_parameter",
            )
        self.ignored.append(shown)


class LenientPart(StrictModel):
    """A part of a body, of which clients send more fields with each version; unknown ones are reported."""

    PATH: ClassVar[str] = ""  # of the part, with a dot, as ignored names are reported

    @model_validator(mode="before")
    @classmethod
    def _no_more_names_than_fields(cls, value: Any, info: ValidationInfo) -> Any:  # overrides StrictModel's
        return cls._with_known_names(value, info)

    @classmethod
    def _with_known_names(cls, value: Any, info: ValidationInfo) -> Any:
        """The part without names that are no fields, which are reported."""
        if isinstance(value, dict) and not value.keys() <= cls.model_fields.keys():
            unknown = info.context if isinstance(info.context, UnknownFields) else UnknownFields()
            return unknown.drop_from(value, cls.model_fields, {}, cls.PATH)
        return value


class RequestBody(StrictModel):
    """A whole body, in which unknown fields are ignored with a warning, or rejected (see `UnknownFields`)."""

    UNSUPPORTED: ClassVar[Unsupported] = {}
    _ignored: tuple[str, ...] = PrivateAttr(default=())

    @classmethod
    def parse(cls, body: Any) -> Self:
        """Validates a decoded JSON body; raises ApiError, FieldError or ValidationError."""
        unknown = UnknownFields()
        known = with_integers(unknown.drop_from(body, cls.known_fields(), cls.UNSUPPORTED), cls)
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


def with_integers(body: Any, model: type[BaseModel]) -> Any:
    """A body whose integers are integers, also where a client has written them as `5.0`, which is the same in JSON."""
    if not isinstance(body, dict) or not any(type(value) is float for value in body.values()):
        return body
    whole = _whole_fields(model)
    return {
        name: int(value) if name in whole and type(value) is float and is_whole(value) else value
        for name, value in body.items()
    }


def is_whole(value: float) -> bool:
    """Whether a number is an integer that a double holds exactly."""
    return value.is_integer() and abs(value) < _LARGEST_EXACT


@cache
def _whole_fields(model: type[BaseModel]) -> frozenset[str]:
    """The fields that are an integer, and not any number."""
    kinds = {name: set(_kinds_of(field.annotation)) for name, field in model.model_fields.items()}
    return frozenset(name for name, of_field in kinds.items() if int in of_field and float not in of_field)


def _kinds_of(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, UnionType):
        for part in get_args(annotation):
            yield from _kinds_of(part)
    else:
        yield annotation


def bounded(name: str, most: int) -> BeforeValidator:
    """Checks a list's length before its items, beside `Field(fail_fast=True)`, so that one bad item ends the check."""

    def check(value: Any) -> Any:
        if isinstance(value, list) and len(value) > most:
            raise ValueError(f"{name} has {len(value)} entries; at most {most} are allowed")
        return value

    return BeforeValidator(check)


def is_typo(name: str, meant: str) -> bool:
    """Whether `name` is `meant` but for one letter (added, left out, exchanged, or swapped with the next one).

    Capitals, hyphens and underscores do not count: `maxTokens` and `max-tokens` are typos of `max_tokens`. A name of
    fewer than four letters is too short to tell.
    """
    first, second = _letters(name), _letters(meant)
    if len(second) < 4 or abs(len(first) - len(second)) > 1:
        return False
    start = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
    if start is None:
        return True  # equal, or one letter more at the end
    a, b = first[start:], second[start:]
    return a[1:] == b[1:] or a[1:] == b or a == b[1:] or (a[:2] == b[1::-1] and a[2:] == b[2:])


def _is_default(name: str, value: Any) -> bool:
    """Whether an unknown parameter has its default value in every server. Where that is true, false is a request."""
    defaults = DEFAULTS_OF_PEERS.get(name, ())
    if value is False:
        return not any(default is True for default in defaults)
    return value is None or value in _EMPTY or any(_is_same(value, default) for default in defaults)


def _letters(name: str) -> str:
    return name[:MAX_NAME_CHARS].replace("_", "").replace("-", "").lower()


def _is_same(value: Any, allowed: Any) -> bool:
    """Whether both are equal, where true is not 1, as in JSON."""
    return isinstance(value, bool) == isinstance(allowed, bool) and bool(value == allowed)
