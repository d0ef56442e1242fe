"""Declarations of settings: a field's help, its limit, and how it is read from text.

Flags, environment variables, `--help` and the checks of `EngineConfig` and the server's settings are made of these.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from types import MappingProxyType, NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

_METADATA = "setting"


@dataclass(frozen=True, slots=True)
class Limit:
    """Which values of the right type a setting accepts."""

    holds: Callable[[Any], bool]
    demand: str  # follows the refused value in an error
    choices: tuple[str, ...] = ()  # all values, where they are a few words


def one_of(*choices: str) -> Limit:
    return Limit(lambda value: value in choices, f"it must be {alternatives(*choices)}", choices)


def alternatives(*choices: str) -> str:
    """Two or more words in prose: a, b or c."""
    return f"{', '.join(choices[:-1])} or {choices[-1]}"


def at_least(least: int, reason: str = "") -> Limit:
    """A smallest value, and why it is that one where this is not obvious."""
    return Limit(lambda value: value >= least, f"it must be at least {least}" + (f" ({reason})" if reason else ""))


def from_to(least: float, most: float) -> Limit:
    """A closed range."""
    return Limit(lambda value: least <= value <= most, f"it must be from {least} to {most}")


NOT_EMPTY = Limit(bool, "it must not be empty")


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of a configuration, as flags, variables and keywords present it."""

    name: str  # of the field, and of the keyword in Python
    key: str  # names the flag and the variable; it differs from `name` for a switch that turns something off
    kind: type  # int, float, str, bool, or tuple: texts, separated by commas
    default: Any  # None: optional, and None is a value too
    summary: str  # one line for `--help`
    metavar: str  # stands for the value in the help
    limit: Limit | None
    is_secret: bool = False  # its value appears in no help, error or log
    variable: str | None = None  # a variable of the environment that other programs read too; it counts last

    @property
    def is_switch(self) -> bool:
        """Whether it is a flag without a value; where the default is True, the flag turns the field off."""
        return self.kind is bool

    def parse(self, text: str) -> Any:
        """The field's value from the text of a flag or variable; raises ValueError that names the form it must have."""
        try:
            return self.from_key(_READERS[self.kind](text))
        except ValueError:
            raise ValueError(f"it must be {_KIND_NAMES[self.kind]}") from None

    def from_key(self, value: Any) -> Any:
        """The field's value, from the one given under `key`."""
        return not value if self.is_switch and self.default is True else value

    def problem(self, value: Any) -> str | None:
        """Why the field may not have this value, as the second half of a sentence; None where it may."""
        if value is None and self.default is None:
            return None
        if not _is_of_kind(value, self.kind):
            return self.limit.demand if self.limit and self.kind is str else f"it must be {_KIND_NAMES[self.kind]}"
        return self.limit.demand if self.limit and not self.limit.holds(value) else None


def setting(
    default: Any,
    summary: str,
    *,
    limit: Limit | None = None,
    metavar: str | None = None,
    key: str | None = None,
    is_secret: bool = False,
    variable: str | None = None,
) -> Any:
    """A dataclass field that is a setting.

    Args:
        summary: one line for `--help`; the default is added to it there.
        metavar: stands for the value in the help; None: the last word of the name.
        key: the name of flag and variable, with underscores; None: the field's own. A switch whose default is True
            needs one, because its flag turns the field off.
        is_secret: whether the value must not be shown, in an error for example.
        variable: of other programs, which counts where neither the flag nor our own variable is given.
    """
    said = {"summary": summary, "limit": limit, "metavar": metavar, "key": key, "is_secret": is_secret,
            "variable": variable}  # fmt: skip
    return field(default=default, repr=not is_secret, metadata={_METADATA: said})


_READ: dict[type[Any], Mapping[str, Setting]] = {}  # found before: they never change, and are asked for often


def settings_of(configuration: type[Any]) -> Mapping[str, Setting]:
    """The settings of a dataclass by the names of their fields, in order; its other fields are left out."""
    if configuration not in _READ:
        _READ[configuration] = MappingProxyType(_read(configuration))
    return _READ[configuration]


def _read(configuration: type[Any]) -> dict[str, Setting]:
    kinds = get_type_hints(configuration)
    found = {}
    for item in fields(configuration):
        if _METADATA in item.metadata:
            said = item.metadata[_METADATA]
            found[item.name] = Setting(
                name=item.name,
                key=said["key"] or item.name,
                kind=_kind(kinds[item.name]),
                default=item.default,
                summary=said["summary"],
                metavar=said["metavar"] or item.name.split("_")[-1].upper(),
                limit=said["limit"],
                is_secret=said["is_secret"],
                variable=said["variable"],
            )
    return found


def check(configuration: Any) -> None:
    """Checks each setting of a dataclass by itself; raises ValueError that names a wrong field."""
    for name, declared in settings_of(type(configuration)).items():
        value = getattr(configuration, name)
        problem = declared.problem(value)
        if problem is not None:
            shown = "not what it should be" if declared.is_secret else repr(value)
            raise ValueError(f"{name} is {shown}; {problem}")


def _kind(hint: Any) -> type:
    """`int` for `int | None`, `tuple` for `tuple[str, ...]`."""
    if isinstance(hint, UnionType):
        (hint,) = (part for part in get_args(hint) if part is not NoneType)
    kind: type = get_origin(hint) or hint
    if kind not in _READERS:
        raise TypeError(f"a setting of type {hint} cannot be read from text")
    return kind


def _is_of_kind(value: Any, kind: type) -> bool:
    if kind is tuple:
        return isinstance(value, tuple) and all(isinstance(part, str) for part in value)
    if kind in (int, float):  # numpy's scalars count; True is no number here
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    return isinstance(value, kind)


def _read_switch(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("", "0", "false", "no", "off"):
        return False
    raise ValueError


def _read_names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


_READERS: Mapping[type, Callable[[str], Any]] = {
    int: int,
    float: float,
    str: str,
    bool: _read_switch,
    tuple: _read_names,
}
_KIND_NAMES: Mapping[type, str] = {
    int: "an integer",
    float: "a number",
    str: "a string",
    bool: "true or false",
    tuple: "a tuple of strings",
}
