"""Runs the tests of the playground's pure modules, which are JavaScript, under Node."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.patience import PROCESS_S

HERE = Path(__file__).resolve().parent
NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_modules_pass_their_tests_under_node() -> None:
    assert NODE is not None
    suites = sorted(str(path) for path in (HERE / "js").rglob("*.test.mjs"))
    assert suites
    result = subprocess.run([NODE, "--test", *suites], check=False, capture_output=True, text=True, timeout=PROCESS_S)
    assert result.returncode == 0, result.stdout + result.stderr
