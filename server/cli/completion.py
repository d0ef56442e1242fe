"""`eagre completion`: completion scripts for bash, zsh and fish, generated from the argument parser.

shtab has no fish, and argcomplete starts the command for each completion.
"""

import argparse
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from server.cli.parser import HELP_ALL, build_parser
from server.startup.flags import flag_name
from server.startup.settings import ServerSettings


class Option(NamedTuple):
    flags: tuple[str, ...]  # such as -h and --help
    help: str
    takes_value: bool
    choices: tuple[str, ...]  # of the value; if empty, it may be the name of a file
    is_repeatable: bool


class Command(NamedTuple):
    name: str
    help: str
    options: tuple[Option, ...]
    choices: tuple[str, ...]


def completion_script(shell: str) -> str:
    return SHELLS[shell](read_commands())


def read_commands() -> tuple[Command, ...]:
    """The commands of `eagre`, in the order in which its help lists them."""
    parser = build_parser(["serve", "deploy", "run-batch", HELP_ALL])
    words = {flag_name(declared): declared.limit.choices for declared in ServerSettings.declared() if declared.limit}
    # argparse has no public way to ask a parser for its arguments.
    (subparsers,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    helps = {listed.dest: listed.help or "" for listed in subparsers._choices_actions}
    return tuple(_read_command(name, helps[name], command, words) for name, command in subparsers.choices.items())


def _read_command(
    name: str, summary: str, parser: argparse.ArgumentParser, words: Mapping[str, tuple[str, ...]]
) -> Command:
    """Reads a command; `words` has the choices of settings, which argparse does not know."""
    formatter = parser._get_formatter()
    options = tuple(
        Option(
            tuple(action.option_strings),
            " ".join(formatter._expand_help(action).split()) if action.help else "",
            action.nargs != 0,
            tuple(action.choices or words.get(action.option_strings[-1], ())),
            isinstance(action, argparse._AppendAction),
        )
        for action in parser._actions
        if action.option_strings
    )
    positionals = [action for action in parser._actions if not action.option_strings]
    return Command(name, summary, options, tuple(str(word) for action in positionals for word in action.choices or ()))


_BASH = """\
# eagre completion bash
_eagre() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} command= words= word
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case "$word" in -*) ;; *) command=$word; break ;; esac
  done
  COMPREPLY=()
  case "$command $previous" in
%(values)s
    *)
      case "$command" in
        '') words=%(names)s ;;
%(words)s
      esac
      # Arguments that are not options may be files.
      if [[ $command && $current != -* && ' %(closed)s ' != *" $command "* ]]; then return; fi
      ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o bashdefault -o default -F _eagre eagre
"""


def _bash(commands: tuple[Command, ...]) -> str:
    values = [
        f"    {_pattern(command, option)}) words={shlex.quote(' '.join(option.choices))} ;;"
        for command in commands
        for option in command.options
        if option.choices
    ]
    values += (
        f"    {'|'.join(patterns)}) return ;;  # the value is a file, perhaps"
        for command in commands
        if (patterns := [_pattern(command, o) for o in command.options if o.takes_value and not o.choices])
    )
    words = (f"        {command.name}) words={shlex.quote(' '.join(_words(command)))} ;;" for command in commands)
    return _BASH % {
        "values": "\n".join(values),
        "names": shlex.quote(" ".join((*(command.name for command in commands), "--help", "--version"))),
        "words": "\n".join(words),
        "closed": " ".join(command.name for command in commands if command.choices),
    }


def _pattern(command: Command, option: Option) -> str:
    return "|".join(f"'{command.name} {flag}'" for flag in option.flags)


def _words(command: Command) -> Iterator[str]:
    yield from command.choices
    for option in command.options:
        yield from option.flags


_ZSH = """\
#compdef eagre
_eagre() {
  local -a commands
  commands=(
%(commands)s
  )
  if (( CURRENT == 2 )); then
    _describe -t commands 'eagre command' commands
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  case $command in
%(arguments)s
  esac
}
# Read as a file of $fpath, this is the function's body; read by `source`, it only declares the function.
if [[ "$funcstack[1]" == _eagre ]]; then _eagre "$@"; else compdef _eagre eagre; fi
"""


def _zsh(commands: tuple[Command, ...]) -> str:
    listed = (f"    {shlex.quote(f'{command.name}:{command.help}')}" for command in commands)
    arguments = (
        f"    {command.name}) _arguments {' '.join(shlex.quote(spec) for spec in _zsh_specs(command))} ;;"
        for command in commands
    )
    return _ZSH % {"commands": "\n".join(listed), "arguments": "\n".join(arguments)}


def _zsh_specs(command: Command) -> Iterator[str]:
    for option in command.options:
        help_text = option.help.translate({ord(mark): f"\\{mark}" for mark in "[]\\:"})
        value = f":value:({' '.join(option.choices)})" if option.choices else ":value:_files"
        for flag in option.flags:
            yield f"{'*' if option.is_repeatable else ''}{flag}[{help_text}]{value if option.takes_value else ''}"
    yield f"*:argument:({' '.join(command.choices)})" if command.choices else "*:argument:_files"


def _fish(commands: tuple[Command, ...]) -> str:
    lines = ["# eagre completion fish", "complete -c eagre -n __fish_use_subcommand -f"]
    for command in commands:
        lines.append(f"complete -c eagre -n __fish_use_subcommand -a {command.name} -d {_fish_quote(command.help)}")
        within = f"complete -c eagre -n '__fish_seen_subcommand_from {command.name}'"
        if command.choices:
            lines.append(f"{within} -f -a {_fish_quote(' '.join(command.choices))}")
        for option in command.options:
            flags = " ".join(f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags)
            value = f" -x -a {_fish_quote(' '.join(option.choices))}" if option.choices else " -r"
            lines.append(f"{within} {flags} -d {_fish_quote(option.help)}{value if option.takes_value else ''}")
    return "\n".join((*lines, ""))


def _fish_quote(text: str) -> str:
    """Quotes `text` for fish, where only the backslash and the quote itself are special within single quotes."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


SHELLS: dict[str, Callable[[tuple[Command, ...]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
