"""The programs in docs/examples that need packages which the main tests have not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.test_javascript import PACKAGES

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def run(*command: str | Path, url: str) -> str:
    """The output of a program that must succeed."""
    done = subprocess.run(
        [str(part) for part in command],
        env={**os.environ, "EAGRE_URL": url}, timeout=120, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_anthropics_library(url: str) -> None:
    output = run(sys.executable, EXAMPLES / "messages.py", url=url)
    assert "Paris" in output
    assert "tool_use {'harbour': 'B" in output


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_openais_javascript_library(url: str, tmp_path: Path) -> None:
    (tmp_path / "node_modules").symlink_to(PACKAGES / "node_modules")
    shutil.copy(EXAMPLES / "openai.mjs", tmp_path)
    assert "Paris" in run("node", tmp_path / "openai.mjs", url=url)
