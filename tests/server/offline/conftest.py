"""Models for Python programs over the fake engine."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engine.interface.config import EngineConfig
from server.offline.llm import LLM
from server.startup.model_loader import LoadedModel
from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.text_model import FakeTextModel
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[3]
ENDLESS: dict[str, Any] = {"max_tokens": 90_000, "ignore_eos": True}  # of an engine with a context this long

MakeLLM = Callable[..., LLM]


def endless_engine() -> FakeEngineClient:
    return FakeEngineClient(max_model_len=100_000)


def has_no_requests(engine: FakeEngineClient) -> bool:
    return not engine.running


def wait_until(holds: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.002)


@pytest.fixture
def make_llm() -> Iterator[MakeLLM]:
    """`make_llm(engine)`; after the test, nothing may be left running in the engine."""
    made: list[tuple[LLM, FakeEngineClient]] = []

    def make(engine: FakeEngineClient | None = None, text_model: FakeTextModel | None = None, **config: Any) -> LLM:
        engine = engine or FakeEngineClient()
        loaded = LoadedModel(engine.client, (text_model or FakeTextModel()).model)
        made.append((LLM.from_loaded(loaded, model="fake", config=EngineConfig(**config), num_programs=3), engine))
        return made[-1][0]

    yield make
    for llm, engine in made:
        wait_until(partial(has_no_requests, engine))
        llm.close()
        assert engine.is_shut_down


@pytest.fixture
def llm(make_llm: MakeLLM) -> LLM:
    return make_llm()


def interrupt_when(holds: Callable[[], bool]) -> None:
    """Presses Ctrl-C, in a while."""

    def press() -> None:
        wait_until(holds)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press).start()
