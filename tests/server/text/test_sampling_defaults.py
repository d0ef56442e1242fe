from __future__ import annotations

from pathlib import Path

import structlog

from server.model_sources.builtin_models import BUILTIN_MODELS
from server.text.text_model import TextModel, sampling_defaults
from tests.server.support.gguf_files import byte_level_fields, write_gguf


def test_the_later_source_counts() -> None:
    card = {"temperature": 0.2, "top_p": 0.9}
    assert sampling_defaults([("card", card)]) == card
    stated = {"top_p": 0.5, "top_k": 7, "min_p": 0.1, "repetition_penalty": 1.1, "temperature": None, "do_sample": True}
    defaults = sampling_defaults([("card", card), ("file", stated)])
    assert dict(defaults) == {
        "temperature": 0.2,
        "top_p": 0.5,
        "top_k": 7,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
    }


def test_what_the_sampler_does_not_take_is_left_out_aloud() -> None:
    with structlog.testing.capture_logs() as logs:
        defaults = sampling_defaults([("x.json", {"temperature": 5.0, "top_k": "many", "min_p": True, "top_p": 0.9})])
    assert dict(defaults) == {"top_p": 0.9}
    assert [entry["event"] for entry in logs] == ["sampling_default_ignored"] * 3
    assert logs[0]["source"] == "x.json"
    assert "temperature is 5.0; it must be from 0 to 2" in logs[0]["reason"]


def test_a_gguf_file_may_state_them(tmp_path: Path) -> None:
    fields = byte_level_fields() | {"general.sampling.temp": 0.7, "general.sampling.top_k": 20}
    card = {"temperature": 0.2, "top_p": 0.9}
    model = TextModel.load(write_gguf(tmp_path / "x.gguf", fields), None, card)
    assert dict(model.sampling_defaults) == {"temperature": 0.7, "top_p": 0.9, "top_k": 20}
    assert dict(TextModel.load(write_gguf(tmp_path / "y.gguf", byte_level_fields())).sampling_defaults) == {}


def test_every_builtin_has_its_cards(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", byte_level_fields())
    loaded = {name: TextModel.load(path, name, model.sampling) for name, model in BUILTIN_MODELS.items()}
    assert {name: dict(model.sampling_defaults) for name, model in loaded.items()} == {
        "smollm2-135m-instruct": {"temperature": 0.2, "top_p": 0.9},
        "gemma-3-270m": {"temperature": 1.0, "top_k": 64, "top_p": 0.95},
        "qwen2.5-coder-0.5b": {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.1},
        "qwen2.5-coder-1.5b": {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.1},
        "all-minilm-l6-v2": {},
    }
