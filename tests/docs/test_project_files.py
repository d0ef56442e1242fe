"""Files that repeat something of pyproject.toml or of the Makefile say the same."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text("utf-8"))


def test_the_citation_has_the_projects_version_and_license() -> None:
    citation = read("CITATION.cff")
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]


def test_no_other_file_of_the_server_states_the_version() -> None:
    for folder in ("server", "engine", "docker"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".yaml", ".service") or path.name == "Dockerfile":
                literal = re.compile(rf"""version\w*\s*[=:]\s*["']?{re.escape(PROJECT["version"])}\b""", re.IGNORECASE)
                assert not literal.search(path.read_text("utf-8")), path


def test_the_hooks_before_a_commit_are_those_of_make_check() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    recipe = makefile[makefile.index("\ncheck:") : makefile.index("\npull:")]
    for hook in (hook for repo in read(".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]):
        command = hook["entry"].replace(" --force-exclude", "").replace(".venv/bin/", "$(BIN)/")
        assert command in recipe, command


def test_the_workflow_runs_every_version_of_python_that_is_supported() -> None:
    versions = read(".github/workflows/ci.yml")["jobs"]["check"]["strategy"]["matrix"]["python"]
    assert f">={versions[0]}" == PROJECT["requires-python"]
    named = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", name)]
    assert set(named) <= set(versions)
