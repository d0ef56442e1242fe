"""Completion: the scripts know every flag, and a shell that is here completes with them."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from server.cli import main as cli
from server.cli.completion import SHELLS, completion_script, read_commands
from tests.patience import PATIENCE_S

COMMANDS = [
    "serve", "deploy", "run-batch", "pull", "models", "run", "ps", "show", "stop", "config", "rm", "complete", "chat",
    "top", "bench", "completion",
]  # fmt: skip


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_has_every_command_and_flag(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == 0
    shown = capsys.readouterr().out
    assert shown == completion_script(shell)
    commands = read_commands()
    assert [command.name for command in commands] == COMMANDS
    for command in commands:
        assert command.name in shown
        for flag in (flag for option in command.options for flag in option.flags if flag.startswith("--")):
            assert (f"-l {flag[2:]} " if shell == "fish" else flag) in shown


def test_what_the_options_are() -> None:
    serve = next(command for command in read_commands() if command.name == "serve")
    options = {option.flags[-1]: option for option in serve.options}
    assert "json" in options["--log-format"].choices
    assert options["--dtype"].choices == ("auto", "float32", "bfloat16")
    assert options["--port"].takes_value
    assert not options["--help"].takes_value
    assert options["--model"].is_repeatable


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_can_read_it(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not here")
    ended = subprocess.run(
        [shell, "-n"], input=completion_script(shell), text=True, capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not here")
@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["cha"], {"chat"}),
        (["comp"], {"complete", "completion"}),
        (["--v"], {"--version"}),
        (["serve", "--log-f"], {"--log-format"}),
        (["serve", "--log-format", "j"], {"json"}),
        (["serve", "--port", "8", "--log-format", "c"], {"console"}),
        (["serve", "--store", "s"], set()),  # the name of a file, which bash completes by itself
        (["serve", "mod"], set()),
        (["completion", ""], {"bash", "zsh", "fish", "-h", "--help"}),
        (["top", "--o"], {"--once"}),
    ],
)
def test_bash_completes(words: list[str], found: set[str]) -> None:
    lines = [
        completion_script("bash"),
        'COMP_WORDS=(eagre "$@")',
        "COMP_CWORD=$#",
        "_eagre",
        'printf "%s\\n" "${COMPREPLY[@]}"',
    ]
    ended = subprocess.run(
        ["bash", "-s", "--", *words],
        input="\n".join(lines),
        text=True,
        capture_output=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert set(ended.stdout.split()) == found
    assert ended.stderr == ""
