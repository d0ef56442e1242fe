"""What becomes of an engine that cannot serve, and when a model is prepared for grammars."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog

from engine.interface.config import EngineConfig
from engine.interface.types import EngineError, Progress
from server.cli import model_loader
from server.cli.model_loader import ModelLoader, prepare_when_quiet
from server.serving import served_model
from server.serving.served_models import ServedModels
from server.startup.model_loader import LoadedModel
from server.startup.model_settings import settings_of_each
from server.startup.progress import silent
from server.startup.settings import ServerSettings
from server.structured_output.grammar_compiler import GrammarCompiler
from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.model_plan import planning
from tests.fakes.text_model import FakeTextModel
from tests.patience import PATIENCE_S
from tests.server.conftest import eventually


class Loaded:
    """A server of one model, whose load ends when it may."""

    def __init__(self, engine: EngineConfig | None = None) -> None:
        self.engine = FakeEngineClient()
        self.may_end = threading.Event()
        self.error: Exception | None = None
        settings = ServerSettings(models=("one=x",), engine=engine or EngineConfig())
        self.served = ServedModels(settings, settings_of_each(settings))
        self.model = self.served.first
        self.loader = ModelLoader(self.served, planning(self.load), silent)

    async def bring(self) -> None:
        await (await self.loader.plan(self.model)).bring()

    def load(self, settings: ServerSettings, progress: Progress) -> LoadedModel:
        assert self.may_end.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error
        return LoadedModel(self.engine.client, FakeTextModel().model)


@pytest.mark.parametrize(("wanted", "is_said"), [(9_999_999, True), (512, False), (None, False)])
async def test_a_context_shorter_than_the_flag_says_is_said(wanted: int | None, is_said: bool) -> None:
    loaded = Loaded(EngineConfig(max_model_len=wanted))
    loaded.may_end.set()
    with structlog.testing.capture_logs() as logs:
        await loaded.bring()
    warned = [event for event in logs if event["event"] == "max_model_len_reduced"]
    assert [event["max_model_len"] for event in warned] == ([512] if is_said else [])
    assert all(f"--max-model-len is {wanted}" in event["detail"] for event in warned)
    await loaded.engine.client.shutdown_in_background()
    await loaded.served.close()


async def test_an_engine_that_cannot_be_started_is_shut_down(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(loop: asyncio.AbstractEventLoop) -> None:
        raise EngineError("the other hosts have been let go")

    loaded = Loaded()
    loaded.may_end.set()
    with monkeypatch.context() as patch:
        patch.setattr(loaded.engine, "start", refuse)
        with pytest.raises(EngineError, match="let go"):
            await loaded.bring()
    assert loaded.engine.is_shut_down
    assert not loaded.model.is_open
    assert not loaded.loader.failed.done()
    await loaded.served.close()


@pytest.mark.parametrize("part", ["StructuredOutputManager", "IdleSleep"])
async def test_the_engine_of_a_model_that_cannot_be_opened_is_shut_down(
    monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise MemoryError("no room for a part of the model")

    closed: list[GrammarCompiler] = []

    def close(grammars: GrammarCompiler) -> None:
        closed.append(grammars)

    loaded = Loaded()
    loaded.may_end.set()
    with monkeypatch.context() as patch:
        patch.setattr(served_model, part, refuse)
        patch.setattr(GrammarCompiler, "close", close)
        with pytest.raises(MemoryError, match="no room"):
            await loaded.bring()
    assert loaded.engine.is_shut_down
    assert not loaded.model.is_open
    assert len(closed) == 1
    await asyncio.sleep(0)
    assert not loaded.loader.failed.done()  # one that is shut down has not failed
    await loaded.served.close()


async def test_an_error_of_the_shutdown_keeps_that_of_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(loop: asyncio.AbstractEventLoop) -> None:
        raise EngineError("the other hosts have been let go")

    async def refuse_too() -> None:
        raise OSError("the folder of pages is gone")

    loaded = Loaded()
    loaded.may_end.set()
    monkeypatch.setattr(loaded.engine, "start", refuse)
    monkeypatch.setattr(loaded.engine, "shutdown_in_background", refuse_too)
    with pytest.raises(OSError, match="folder of pages") as raised:
        await loaded.bring()
    assert isinstance(raised.value.__context__, EngineError)
    await loaded.served.close()


async def test_an_engine_whose_load_is_cancelled_is_shut_down_once_it_is_loaded() -> None:
    loaded = Loaded()
    planned = await loaded.loader.plan(loaded.model)
    bringing = asyncio.ensure_future(planned.bring())
    await asyncio.sleep(0)
    bringing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await bringing
    assert not loaded.engine.is_shut_down
    loaded.may_end.set()
    await eventually(lambda: loaded.engine.is_shut_down)
    assert not loaded.model.is_open
    await loaded.served.close()


async def test_an_engine_is_shut_down_that_was_loaded_in_the_moment_of_the_cancel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded, loading = Loaded(), asyncio.get_running_loop().create_future()
    planned = await loaded.loader.plan(loaded.model)
    monkeypatch.setattr(model_loader, "run_in_background", lambda *_, **__: loading)
    bringing = asyncio.ensure_future(planned.bring())
    await asyncio.sleep(0)
    loading.set_result(LoadedModel(loaded.engine.client, FakeTextModel().model))
    bringing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await bringing
    await eventually(lambda: loaded.engine.is_shut_down)
    assert not loaded.model.is_open
    await loaded.served.close()


async def test_a_cancelled_load_that_fails_troubles_nobody(caplog: pytest.LogCaptureFixture) -> None:
    loaded = Loaded()
    loaded.error = ValueError("no model")
    planned = await loaded.loader.plan(loaded.model)
    bringing = asyncio.ensure_future(planned.bring())
    await asyncio.sleep(0)
    bringing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await bringing
    loaded.may_end.set()
    await eventually(lambda: not any(thread.name == "eagre-load" for thread in threading.enumerate()))
    await asyncio.sleep(0.01)
    assert not loaded.engine.is_shut_down
    assert caplog.records == []
    await loaded.served.close()


@pytest.mark.parametrize("error", [None, RuntimeError("no memory")])
async def test_a_model_is_prepared_once_no_model_answers(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    monkeypatch.setattr(model_loader, "QUIET_POLL_S", 0.001)
    monkeypatch.setattr(model_loader, "QUIET_S", 0.004)
    prepared = 0

    def prepare() -> None:
        nonlocal prepared
        prepared += 1
        if error is not None:
            raise error

    served = SimpleNamespace(num_generations=1)
    model = SimpleNamespace(model_name="x", prepare_grammars=prepare)
    task = asyncio.ensure_future(prepare_when_quiet(cast(Any, served), cast(Any, model)))
    await asyncio.sleep(0.03)
    assert prepared == 0
    served.num_generations = 0
    await asyncio.wait_for(task, PATIENCE_S)
    assert prepared == 1
