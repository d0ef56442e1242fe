"""A Hub of its own for each test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import close_session

from tests.server.model_sources.fake_hub import FOLDER, QUANTS, SHARDS, FakeHub, running_hub


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
