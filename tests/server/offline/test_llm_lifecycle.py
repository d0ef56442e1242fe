"""The end of a model: failures, `close`, being dropped, the end of a script."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from engine.interface.config import EngineConfig
from engine.interface.types import EngineError
from server.offline.batch import BatchProgress
from server.offline.llm import LLM
from server.startup.model_loader import LoadedModel
from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.text_model import FakeTextModel
from tests.patience import PATIENCE_S, PROCESS_S
from tests.server.offline.conftest import ENDLESS, MakeLLM, endless_engine, wait_until

ROOT = Path(__file__).parents[3]


def test_a_failed_engine_is_told_of(make_llm: MakeLLM) -> None:
    engine = FakeEngineClient(is_manual=True)
    llm = make_llm(engine)
    stream = llm.stream("abc")

    def fail_when_all_run(_progress: BatchProgress) -> None:
        if len(engine.running) == 4:
            engine.fail_soon("the device is gone")

    with pytest.raises(EngineError, match="the device is gone"):
        llm.generate(["a", "b", "c"], progress=fail_when_all_run)
    with pytest.raises(EngineError, match="the engine failed: the device is gone"):
        llm.generate("abc")
    with pytest.raises(EngineError, match="the device is gone"):
        next(stream)


def test_after_close_every_call_raises(make_llm: MakeLLM, tmp_path: Path) -> None:
    engine = FakeEngineClient()
    with make_llm(engine) as llm:
        assert llm.precompile() == 3 == llm.precompile()
    assert engine.is_shut_down
    llm.close()
    message = [{"role": "user", "content": "hello"}]
    calls: list[Callable[[], object]] = [
        lambda: llm.generate("abc"),
        lambda: llm.generate(["abc"]),
        lambda: llm.stream("abc"),
        lambda: llm.chat(message),
        lambda: llm.stream_chat(message),
        lambda: llm.count_tokens("abc"),
        lambda: llm.save(tmp_path),
        llm.precompile,
        llm.pause,
        llm.reset_prefix_cache,
        llm.stats,
    ]
    for call in calls:
        with pytest.raises(EngineError, match="this model has been closed"):
            call()


def test_close_ends_the_calls_of_other_threads(make_llm: MakeLLM) -> None:
    engine = endless_engine()
    llm = make_llm(engine)
    stream = llm.stream("abc", **ENDLESS)
    with ThreadPoolExecutor(2) as workers:
        generate = partial(llm.generate, ["abc", "abd"], progress=False, **ENDLESS)
        running = [workers.submit(generate) for _ in range(2)]
        wait_until(lambda: len(engine.running) == 5)
        llm.close()
        for call in running:
            with pytest.raises(EngineError, match="this model has been closed"):
                call.result(PATIENCE_S)
    with pytest.raises(EngineError, match="this model has been closed"):
        list(stream)


def test_a_dropped_model_closes_itself_but_not_under_a_stream() -> None:
    engine = endless_engine()
    loaded = LoadedModel(engine.client, FakeTextModel().model)
    stream = LLM.from_loaded(loaded, model="fake", config=EngineConfig()).stream("abc", **ENDLESS)
    gc.collect()
    assert next(stream).text
    assert not engine.is_shut_down
    del stream
    gc.collect()
    wait_until(lambda: engine.is_shut_down)


def test_a_script_may_end_without_closing() -> None:
    script = (
        "import threading\n"
        "from engine.interface.config import EngineConfig\n"
        "from server.offline.llm import LLM\n"
        "from server.startup.model_loader import LoadedModel\n"
        "from tests.fakes.text_model import FakeTextModel\n"
        "from tests.server.offline.conftest import ENDLESS, endless_engine\n"
        "llm = LLM.from_loaded(LoadedModel(endless_engine().client, FakeTextModel().model), model='fake',"
        " config=EngineConfig())\n"
        "stream = llm.stream('abc', **ENDLESS)\n"
        "print(next(stream).text != '')\n"
        "threading.Thread(target=llm.generate, args=('abc',), kwargs=ENDLESS, daemon=True).start()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=PROCESS_S, check=False
    )
    assert (ended.stdout, ended.returncode) == ("True\n", 0), ended.stderr
