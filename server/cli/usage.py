"""Wrong usage of the command in one line, with what was probably meant."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

from server.startup.plain_text import without_controls

_INVALID_CHOICE = re.compile(
    r"argument (?P<name>\S+): invalid choice: '(?P<given>[^']*)'.*?\(choose from (?P<choices>.*)\)", re.DOTALL
)
_INVALID_NUMBER = re.compile(r"argument (?P<name>\S+): invalid (?P<kind>int|float) value: (?P<given>.*)", re.DOTALL)
_NUMBERS = {"int": "an integer", "float": "a number"}
EXIT_USAGE = 2


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line each; a flag or word that is close to a known one is suggested."""

    def error(self, message: str) -> NoReturn:
        if found := _INVALID_CHOICE.fullmatch(message):
            choices = [word.strip(" '\"") for word in found["choices"].split(",")]
            hint = _meant(found["given"], choices) or f"it must be one of {', '.join(choices)}"
            message = f"{found['name']} is {found['given']!r}; {hint}"
        elif found := _INVALID_NUMBER.fullmatch(message):
            message = f"{found['name']} is {found['given']}; it must be {_NUMBERS[found['kind']]}"
        message = message.removeprefix("argument ")
        message += " " if message.endswith("?") else "; "
        print(f"eagre: {without_controls(message)}`{self.prog} --help` explains the usage", file=sys.stderr)
        self.exit(EXIT_USAGE)

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """As `parse_args`; an unknown flag exits with the flag that is closest to it."""
        options, unknown = self.parse_known_args(arguments)
        if unknown:
            command = self._command_of(options)
            flags = [name for action in command._actions for name in action.option_strings]
            first = unknown[0].partition("=")[0]
            command.error(f"{first} is no flag; {_meant(first, flags)}".rstrip("; "))
        return options

    def _command_of(self, options: argparse.Namespace) -> argparse.ArgumentParser:
        """The parser of the subcommand that was given, or this one."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction) and action.dest in vars(options):
                found = action.choices.get(vars(options)[action.dest])
                if isinstance(found, argparse.ArgumentParser):
                    return found
        return self


# Variables that are no settings: of the commands, of the engine's kernels, and of the tests.
_OTHER_VARIABLES = (
    "EAGRE_URL", "EAGRE_API_KEY", "EAGRE_CACHE", "EAGRE_THREADS", "EAGRE_NATIVE_VARIANT", "EAGRE_NATIVE_FOLDER",
    "EAGRE_PAIR_PRODUCTS", "EAGRE_TOPOLOGY_FOLDER", "EAGRE_FULL",
)  # fmt: skip
# Kubernetes sets such variables in each pod beside a service that is called eagre.
_OF_KUBERNETES = re.compile(r"EAGRE_(?:SERVICE_(?:HOST|PORT\w*)|PORT_\d+_\w+)")


def unknown_variables(environment: Mapping[str, str], declared: Iterable[str]) -> list[str]:
    """A sentence for each variable of ours that nothing reads; `declared` are those of settings."""
    known = {*_OTHER_VARIABLES, *declared}
    return [
        f"there is no variable {name}; it is ignored; {_meant(name, known)}".rstrip("; ")
        for name in sorted(environment)
        if name.startswith("EAGRE_") and name not in known and not _OF_KUBERNETES.fullmatch(name)
    ]


def _meant(given: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(given, sorted(known), n=1, cutoff=0.7)
    return f"did you mean {near[0]}?" if near else ""
