"""Settings as command line flags and environment variables."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from engine.interface.setting import Setting
from server.startup.config_file import ConfigFile

ENVIRONMENT_PREFIX = "EAGRE_"


def flag_name(setting: Setting) -> str:
    """`--max-num-seqs` for `max_num_seqs`."""
    return "--" + setting.key.replace("_", "-")


def variable_name(setting: Setting) -> str:
    """`EAGRE_MAX_NUM_SEQS` for `max_num_seqs`."""
    return ENVIRONMENT_PREFIX + setting.key.upper()


def add_flag(parser: argparse._ActionsContainer, setting: Setting, *, is_shown: bool = True) -> None:
    """Adds the setting's flag to a parser or a group of one: a text, of a switch True, None where it is missing.

    A flag of several texts may be given again, and gives a list. One that is not shown is left out of the help.
    """
    if setting.is_switch:
        parser.add_argument(
            flag_name(setting), dest=setting.key, action="store_true", default=None,
            help=setting.summary if is_shown else argparse.SUPPRESS,
        )  # fmt: skip
        return
    shown, is_several = setting.summary, setting.kind is tuple
    if setting.default not in (None, (), ""):
        shown += f" (default {', '.join(setting.default) if is_several else setting.default})"
    parser.add_argument(
        flag_name(setting), dest=setting.key, default=None, metavar=setting.metavar,
        help=shown if is_shown else argparse.SUPPRESS,
        action="append" if is_several else "store",
    )  # fmt: skip


def read(
    settings: Iterable[Setting],
    flags: Mapping[str, Any],
    environment: Mapping[str, str],
    file: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """The values of flags by key, else of variables, else of a file, by the names of the fields; raises ValueError.

    `file` has checked values by the settings' keys. A variable that other programs read too has the lowest precedence.
    """
    values: dict[str, Any] = {}
    for setting in settings:
        source, value = flag_name(setting), flags.get(setting.key)
        if value is None:
            source = variable_name(setting)
            value = environment.get(source)
        if value is None and setting.key in file:
            values[setting.name] = file[setting.key]
            continue
        if value is None and setting.variable is not None:
            source = setting.variable
            value = environment.get(source)
        if isinstance(value, list):
            value = ",".join(value)
        if isinstance(value, str):
            try:
                values[setting.name] = setting.parse(value)
            except ValueError as error:
                raise ValueError(f"{source} is {value!r}; {error}") from error
        elif value is not None:
            values[setting.name] = setting.from_key(value)
    return values


def is_given(setting: Setting, flags: Mapping[str, Any], environment: Mapping[str, str]) -> bool:
    """Whether a flag or a variable gives the setting."""
    return flags.get(setting.key) is not None or variable_name(setting) in environment


def as_given(
    message: str,
    settings: Iterable[Setting],
    flags: Mapping[str, Any],
    environment: Mapping[str, str],
    file: ConfigFile | None = None,
) -> str:
    """`message` with settings called by the flag, variable or key of a file that gave them, for the field's name.

    A name of one word is replaced only where the message is about it: `port is 70000`.
    """

    def shown(setting: Setting) -> str:
        variable = variable_name(setting)
        if file is not None and setting.key in file.values and not is_given(setting, flags, environment):
            return f"{setting.key.replace('_', '-')} in {file.path}"
        return variable if flags.get(setting.key) is None and variable in environment else flag_name(setting)

    names = {name: shown(setting) for setting in settings for name in (setting.name, setting.key)}
    long = "|".join(re.escape(name) for name in names if "_" in name)
    message = re.sub(rf"(?<![\w./-])(?:{long})(?![\w./=-])", lambda found: names[found[0]], message)
    first, space, rest = message.partition(" ")
    return names[first] + space + rest if first in names and rest.startswith(("is ", "has ")) else message


def write(settings: Iterable[Setting], configuration: object) -> dict[str, str]:
    """The variables from which `read` makes the same configuration. Values that are None or empty have none."""
    variables = {}
    for setting in settings:
        value = getattr(configuration, setting.name)
        if value is None or value == ():
            continue
        if setting.is_switch:
            text = str(setting.from_key(value)).lower()  # of a switch that turns something off, the other way round
        else:
            text = ",".join(value) if setting.kind is tuple else str(value)
        variables[variable_name(setting)] = text
    return variables
