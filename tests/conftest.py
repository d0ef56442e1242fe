"""Fixtures that need the real built-in models, and settings for all tests."""

from __future__ import annotations

import dataclasses
import gc
import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from engine.engine import Engine
from engine.interface.config import EngineConfig
from server.model_sources.cache_folder import cache_folder
from server.model_sources.model_store import ensure_model
from server.startup.progress import ProgressReporter, silent
from server.text.text_model import TextModel

DEFAULT_MODEL = "smollm2-135m-instruct"
GEMMA = "gemma-3-270m"

# There is no deadline for examples, nor for drawing them, because a busy machine may pause one for any time. The
# examples are the same in every run of the same modules, so that a change is not blamed for an old defect. hypothesis
# also tries the constants of all modules of ours that are imported: behind other tests there may be more of them.
# EAGRE_FUZZ=1 looks for new ones.
settings.register_profile(
    "eagre", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="EAGRE_FUZZ" not in os.environ
)
settings.load_profile("eagre")

# A shell starts its background jobs with Ctrl-C ignored, and their children inherit that; tests send it to theirs.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Excludes what the collection of tests makes from garbage collections, of which each would take a second.

    That is six hundred thousand objects: modules, and twelve thousand tests with their parameters.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The GGUF file of the default model; pulled into the user's cache if missing."""
    with ProgressReporter() as progress:
        return ensure_model(DEFAULT_MODEL, progress)


@pytest.fixture(scope="session")
def gemma_path() -> Path:
    """The GGUF file of Gemma 3 270M; pulled into the user's cache if missing."""
    with ProgressReporter() as progress:
        return ensure_model(GEMMA, progress)


@pytest.fixture(scope="session")
def text_model(model_path: Path) -> TextModel:
    """The tokenizer and the chat template of the default model."""
    return TextModel.load(model_path, DEFAULT_MODEL)


@pytest.fixture(scope="session")
def real_engine_config(text_model: TextModel) -> EngineConfig:
    """A small engine with the default formats, so that few shapes compile; it uses the cache of `eagre serve`."""
    return EngineConfig(
        max_num_seqs=8,
        max_num_batched_tokens=128,
        max_model_len=1024,
        num_pages=600,
        seed=0,
        eos_token_ids=tuple(text_model.tokenizer.eos_token_ids),
        compilation_cache=str(cache_folder() / "compiled"),
    )


@pytest.fixture(scope="session")
def real_engine(model_path: Path, real_engine_config: EngineConfig) -> Engine:
    """The default model, loaded once for all tests; make an `EngineClient(real_engine)` and shut it down."""
    return Engine.load(model_path, real_engine_config, silent)


@pytest.fixture(scope="session")
def exact_engine(model_path: Path, real_engine_config: EngineConfig) -> Engine:
    """The same in float32, which gives the tokens of the reference."""
    return Engine.load(model_path, dataclasses.replace(real_engine_config, dtype="float32", num_pages=300), silent)
