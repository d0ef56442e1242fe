"""Tests of JAX's device as it is, such as a GPU: every family through XLA. `EAGRE_DEVICE=1` runs them, and only it.

On a CPU they take long, and most of what they compute is computed by other tests too.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.workloads import write_folder

if os.environ.get("EAGRE_DEVICE") != "1":
    collect_ignore_glob = ["test_*.py"]

FolderOf = Callable[[str], Path]


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> FolderOf:
    """The folder of the tiny model of a golden, by its name."""
    root, made = tmp_path_factory.mktemp("goldens"), dict[str, Path]()

    def folder(name: str) -> Path:
        if name not in made:
            made[name] = write_folder(root / name, name)
        return made[name]

    return folder
