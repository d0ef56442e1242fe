"""Many prompts at once: waves, progress, interruptions."""

from __future__ import annotations

import threading

import pytest

from server.offline.batch import BatchProgress
from server.offline.llm import LLM
from tests.fakes.engine_client import FakeEngineClient
from tests.server.offline.conftest import ENDLESS, MakeLLM, endless_engine, interrupt_when


def test_more_prompts_than_the_queue_takes_go_in_waves(make_llm: MakeLLM) -> None:
    engine = FakeEngineClient(max_num_queued=8)
    prompts = [f"prompt {index}" for index in range(40)]
    outputs = make_llm(engine).generate(prompts, n=3, max_tokens=64, progress=False)
    assert [[answer.text for answer in output.answers] for output in outputs] == [[prompt] * 3 for prompt in prompts]
    assert len(engine.submitted) == 120
    assert engine.aborted == []


def test_a_callback_is_told_of_the_progress(llm: LLM) -> None:
    told: list[BatchProgress] = []
    threads = set()

    def watch(progress: BatchProgress) -> None:
        told.append(progress)
        threads.add(threading.current_thread())

    llm.generate(["abc"] * 10, progress=watch)
    assert threads == {threading.current_thread()}
    assert told[-1][:3] == (10, 10, 40)
    assert told[-1].tokens_per_second > 0
    assert [progress.num_finished for progress in told].count(10) == 1


def test_progress_is_shown_for_several_prompts(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(["abc"] * 10)
    shown = capsys.readouterr().err
    assert shown.startswith("generate ...\ngenerate: done, 10 in ")
    assert shown.endswith(" tokens/s\n")
    llm.generate(["abc"] * 10, progress=False)
    llm.generate("abc")
    assert capsys.readouterr().err == ""


def test_an_exception_in_the_callback_aborts_everything(make_llm: MakeLLM) -> None:
    engine = endless_engine()

    def watch(_progress: BatchProgress) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        make_llm(engine).generate(["abc"] * 20, progress=watch, **ENDLESS)
    assert engine.running == {}
    assert len(engine.aborted) == 20


def test_an_interrupt_aborts_a_batch_that_waits_for_room(make_llm: MakeLLM) -> None:
    engine = FakeEngineClient(max_model_len=100_000, max_num_queued=8)
    llm = make_llm(engine)
    interrupt_when(lambda: len(engine.running) == 8)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["abc"] * 20, progress=False, **ENDLESS)
    assert engine.running == {}
    assert len(engine.submitted) == len(engine.aborted) == 8
    assert llm.generate("abc").text == "abc"
