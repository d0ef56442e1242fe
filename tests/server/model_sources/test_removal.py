"""Models of the Hub that are deleted: their own files, and nothing that another model needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.model_sources.cache_folder import ModelStoreError
from server.model_sources.model_store import pull_model, resolve_model
from server.model_sources.removal import remove_model
from server.startup.progress import silent
from tests.server.model_sources.fake_hub import FakeHub


def test_what_other_models_need_stays(hub: FakeHub, tmp_path: Path) -> None:
    first, second = (f"owner/gguf:{quant}" for quant in ("tiny-Q4_K_M.gguf", "Q8_0"))
    paths = [pull_model(name, silent) for name in (first, second)]
    blob = paths[0].resolve()
    size = blob.stat().st_size
    assert remove_model(first) >= size
    assert not paths[0].exists()
    assert not blob.exists()
    assert resolve_model(first) is None
    assert resolve_model(second) == paths[1]
    assert paths[1].read_bytes()
    with pytest.raises(ModelStoreError, match="is not here"):
        remove_model(first)
