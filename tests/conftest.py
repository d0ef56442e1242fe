"""Fixtures that need the real default model, and settings for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from server.model_store import ensure_model
from server.progress import ProgressReporter
from server.text_model import TextModel

DEFAULT_MODEL = "smollm2-135m-instruct"

# A busy machine may pause an example for longer than any deadline; slowness is not what these tests are about.
settings.register_profile("eagre", deadline=None)
settings.load_profile("eagre")


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The default model's GGUF file, pulled into the user's cache when missing."""
    with ProgressReporter() as progress:
        return ensure_model(DEFAULT_MODEL, progress)


@pytest.fixture(scope="session")
def text_model(model_path: Path) -> TextModel:
    """The default model's tokenizer and chat template."""
    return TextModel.load(model_path, DEFAULT_MODEL)
