"""The official JavaScript libraries of OpenAI's API, Anthropic's and Ollama's, in node."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "javascript"
PACKAGES = Path(os.environ.get("EAGRE_NODE_MODULES", SCRIPTS.parents[2] / "build" / "clients-javascript"))


@pytest.mark.parametrize("name", ["openai", "anthropic", "ollama"])
@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_library(url: str, tmp_path: Path, name: str) -> None:
    # Imports are looked for beside the script and in the folders above it.
    (tmp_path / "node_modules").symlink_to(PACKAGES / "node_modules")
    shutil.copy(SCRIPTS / f"{name}.mjs", tmp_path)
    done = subprocess.run(
        ["node", "--test", f"{name}.mjs"],
        cwd=tmp_path, env={**os.environ, "EAGRE_URL": url}, timeout=300, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# fail 0" in done.stdout
