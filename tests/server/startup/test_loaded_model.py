from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from server.startup import loaded_model
from server.startup.loaded_model import LoadedModel, load_model
from server.startup.progress import silent
from server.startup.settings import ServerSettings
from server.text.text_model import TextModel
from tests.server.gguf_files import byte_level_fields, write_gguf


@pytest.mark.parametrize(("wanted", "expected"), [("model", {"temperature": 0.2}), ("openai", {})])
def test_the_models_sampling_can_be_turned_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: str, expected: dict[str, float]
) -> None:
    path = write_gguf(tmp_path / "x.gguf", byte_level_fields() | {"general.sampling.temp": 0.2})
    text_model = TextModel.load(path)
    engine = cast(Any, SimpleNamespace(model_info=SimpleNamespace(vocab_size=text_model.tokenizer.vocab_size)))
    monkeypatch.setattr(loaded_model, "load_with", lambda *_: LoadedModel(engine, text_model))
    loaded = load_model(ServerSettings(sampling_defaults=wanted), silent)
    assert dict(loaded.text_model.sampling_defaults) == expected
    assert loaded.text_model.tokenizer is text_model.tokenizer
