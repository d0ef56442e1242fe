"""The benchmarks as commands: each answers `--help`, and what is written about them names commands that there are."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PROGRAMS = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py"))
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "Makefile"]
TEXTS += [*(ROOT / "docs").glob("*.md"), *(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.md")]


@pytest.mark.parametrize("program", PROGRAMS)
def test_it_has_help(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        import_module(f"benchmarks.{program}").main(["--help"])
    assert ended.value.code == 0
    assert f"python -m benchmarks.{program}" in capsys.readouterr().out


def test_what_is_written_names_programs_that_there_are() -> None:
    named = {name for path in TEXTS for name in re.findall(r"-m benchmarks\.([\w.]+)", path.read_text("utf-8"))}
    assert named >= set(PROGRAMS)
    assert [name for name in named if not (ROOT / "benchmarks" / f"{name.replace('.', '/')}.py").exists()] == []
