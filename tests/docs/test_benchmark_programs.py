"""The benchmarks as commands: each answers `--help`, and what is written about them names commands that there are."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "benchmarks"
# A program is a module, or a package with a __main__.
PROGRAMS = {path.stem: f"benchmarks.{path.stem}" for path in FOLDER.glob("*.py")}
PROGRAMS |= {path.parent.name: f"benchmarks.{path.parent.name}.__main__" for path in FOLDER.glob("*/__main__.py")}
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "Makefile"]
TEXTS += [*(ROOT / "docs").glob("*.md"), *FOLDER.rglob("*.py"), *FOLDER.rglob("*.md")]


@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_it_has_help(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        import_module(PROGRAMS[program]).main(["--help"])
    assert ended.value.code == 0
    assert f"python -m benchmarks.{program}" in capsys.readouterr().out


def test_what_is_written_names_programs_that_there_are() -> None:
    named = {name for path in TEXTS for name in re.findall(r"-m benchmarks\.([\w.]+)", path.read_text("utf-8"))}
    assert named >= PROGRAMS.keys()
    others = named - PROGRAMS.keys()  # parts that a program runs in a process of their own
    assert [name for name in others if not (FOLDER / f"{name.replace('.', '/')}.py").exists()] == []
