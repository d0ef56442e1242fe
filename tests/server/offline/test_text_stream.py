"""Answers as iterators of deltas, and what ends them early."""

from __future__ import annotations

import pytest

from engine.interface.types import FinishReason
from server.offline.llm import LLM
from tests.fakes.engine_client import FakeEngineClient
from tests.server.offline.conftest import ENDLESS, MakeLLM, endless_engine, interrupt_when, wait_until


def test_a_stream_gives_what_generate_gives(llm: LLM) -> None:
    stream = llm.stream("tidé 🌊 END", stop="END", max_tokens=64)
    deltas = list(stream)
    assert "".join(delta.text for delta in deltas) == "tidé 🌊 "
    assert [delta.finish_reason for delta in deltas][-1] is FinishReason.STOP
    assert stream.usage == llm.generate("tidé 🌊 END", stop="END", max_tokens=64).usage
    assert list(stream) == []


def test_a_stream_of_several_answers(llm: LLM) -> None:
    texts = ["", ""]
    for delta in llm.stream("abc", n=2):
        texts[delta.index] += delta.text
    assert texts == ["abc", "abc"]


@pytest.mark.parametrize("n", [1, 3])
def test_closing_a_stream_aborts(make_llm: MakeLLM, n: int) -> None:
    engine = endless_engine()
    stream = make_llm(engine).stream("abc", n=n, **ENDLESS)
    assert next(stream).text
    stream.close()
    stream.close()
    assert list(stream) == []
    wait_until(lambda: not engine.running)
    assert len(engine.aborted) == n


def test_dropping_a_stream_aborts(make_llm: MakeLLM) -> None:
    engine = endless_engine()
    llm = make_llm(engine)
    for delta in llm.stream("abc", **ENDLESS):
        assert delta.text
        break
    llm.stream("abc", **ENDLESS)  # never read
    wait_until(lambda: not engine.running)
    assert len(engine.aborted) == 2


def test_an_interrupt_aborts_a_stream(make_llm: MakeLLM) -> None:
    engine = FakeEngineClient(is_manual=True)
    llm = make_llm(engine)
    stream = llm.stream("abc")
    interrupt_when(lambda: engine.submitted[0].is_awaited)
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    wait_until(lambda: not engine.running)
