"""The offline API over the fake engine: one prompt, many, streams, threads, interruptions, the end."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engine.border.config import EngineConfig
from engine.border.types import EngineError, FinishReason
from sampling.host.params import InvalidParameter, SamplingParams
from server.offline.batch import BatchProgress
from server.offline.llm import LLM
from server.startup.loading import LoadedModel
from server.wire.chat_request import ChatCompletionRequest
from server.wire.completion_request import CompletionRequest
from tests.fakes.engine_client import FakeEngineClient, token_logprobs
from tests.fakes.text_model import EOS, FakeTextModel, render

ROOT = Path(__file__).parents[3]
ENDLESS: dict[str, Any] = {"max_tokens": 90_000, "ignore_eos": True}  # of an engine with a context this long

MakeLLM = Callable[..., LLM]


def endless_engine() -> FakeEngineClient:
    return FakeEngineClient(max_model_len=100_000)


def has_no_requests(engine: FakeEngineClient) -> bool:
    return not engine.running


def wait_until(holds: Callable[[], bool], seconds: float = 5.0) -> None:
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


def test_one_prompt_gives_one_output(llm: LLM) -> None:
    output = llm.generate("tidé 🌊", max_tokens=64)
    assert output.text == "tidé 🌊"
    assert output.token_ids == [*"tidé 🌊".encode(), EOS]
    assert output.prompt_token_ids == list("tidé 🌊".encode())
    assert output.finish_reason is FinishReason.STOP
    assert output.usage == (len("tidé 🌊".encode()), len("tidé 🌊".encode()) + 1, 0)
    assert output.num_cached_tokens == 0


def test_token_ids_are_a_prompt_too(llm: LLM) -> None:
    assert llm.generate([104, 105]).text == "hi"
    assert [output.text for output in llm.generate([[104], [105]], progress=False)] == ["h", "i"]


def test_many_prompts_come_back_in_order(llm: LLM) -> None:
    prompts = ["x" * (50 - index) + str(index) for index in range(50)]  # the first takes longest
    outputs = llm.generate(prompts, max_tokens=100, progress=False)
    assert [output.text for output in outputs] == prompts


def test_no_prompts_give_no_outputs(llm: LLM) -> None:
    assert llm.generate([]) == []


def test_more_prompts_than_the_queue_takes_go_in_waves(make_llm: MakeLLM) -> None:
    engine = FakeEngineClient(max_num_queued=8)
    prompts = [f"prompt {index}" for index in range(40)]
    outputs = make_llm(engine).generate(prompts, n=3, max_tokens=64, progress=False)
    assert [[answer.text for answer in output.answers] for output in outputs] == [[prompt] * 3 for prompt in prompts]
    assert len(engine.submitted) == 120
    assert engine.aborted == []


def test_several_answers(llm: LLM) -> None:
    output = llm.generate("abc", n=3, seed=7)
    assert [answer.index for answer in output.answers] == [0, 1, 2]
    assert [answer.text for answer in output.answers] == ["abc"] * 3
    assert output.usage == (3, 12, 0)


def test_stop_strings_cut_as_over_http(llm: LLM) -> None:
    output = llm.generate("one END two", stop="END", max_tokens=64)
    assert (output.text, output.finish_reason) == ("one ", FinishReason.STOP)
    output = llm.generate("one END two", stop=["END"], include_stop_str_in_output=True, max_tokens=64)
    assert output.text == "one END"


def test_params_are_the_engines_and_keywords_win(make_llm: MakeLLM) -> None:
    engine = FakeEngineClient()
    llm = make_llm(engine)
    params = SamplingParams(
        max_tokens=5,
        temperature=0.5,
        top_k=3,
        top_p=0.9,
        min_p=0.1,
        typical_p=0.8,
        top_n_sigma=1.5,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.1,
        dry_multiplier=0.8,
        dry_base=2.0,
        dry_allowed_length=3,
        dry_penalty_last_n=64,
        dry_breaker_ids=(10, 58),
        xtc_probability=0.5,
        xtc_threshold=0.2,
        min_tokens=2,
        seed=4,
        stop_token_ids=(1, 2),
        ignore_eos=True,
        logit_bias=((3, 1.5), (4, -2.0)),
        allowed_token_ids=(97, 98),
        bad_words=((97, 98), (99,)),
        logprobs=2,
        prompt_logprobs=1,
        logprob_token_ids=(5,),
    )
    messages = [{"role": "user", "content": "hello"}]
    for generate in (partial(llm.generate, "a"), partial(llm.chat, messages)):
        generate(params)
        assert engine.submitted[-1].params == params
        generate(params, max_tokens=3, bad_words=["zz"], logit_bias={"7": 1.0}, min_tokens=0, seed=None)
        changed = {
            "max_tokens": 3,
            "bad_words": ((122, 122), (32, 122, 122)),
            "logit_bias": ((7, 1.0),),
            "min_tokens": 0,
        }
        assert engine.submitted[-1].params == replace(params, **changed)
    each = [SamplingParams(max_tokens=length) for length in (1, 2, 3)]
    outputs = llm.generate(["abcdef"] * 3, each, progress=False)
    assert [output.text for output in outputs] == ["a", "ab", "abc"]
    assert [output.finish_reason for output in outputs] == [FinishReason.LENGTH] * 3


def test_requests_take_every_sampling_parameter() -> None:
    names = {field.name for field in fields(SamplingParams)} - {"dry_breaker_ids"} | {"dry_sequence_breakers"}
    assert names <= set(CompletionRequest.model_fields)
    assert names | {"top_logprobs"} <= set(ChatCompletionRequest.model_fields)


@pytest.mark.parametrize(
    ("prompt", "options", "param", "message"),
    [
        ("a", {"temperature": 3}, "temperature", "temperature is 3.0; it must be from 0 to 2"),
        ("a", {"max_tokens": 0}, "max_tokens", "max_tokens is 0; it must be at least 1"),
        ("a", {"max_tokens": 1000}, "max_tokens", "max_tokens is 1000"),
        ("a", {"max_token": 5}, "max_token", 'unknown parameter "max_token"'),
        ("a", {"n": 17}, "n", "n is 17; it must be at most 16"),
        ("a", {"n": "2"}, "n", 'n is "2"; it must be an integer'),
        ("a", {"logit_bias": {5: 1}}, "logit_bias", "logit_bias has the key 5; it must be a token id in digits"),
        ("a", {"dry_breaker_ids": [1]}, "dry_breaker_ids", 'unknown parameter "dry_breaker_ids"'),
        ("a", {"logprob_token_ids": [1]}, "logprob_token_ids", "it needs logprobs"),
        ("a", {"best_of": 1, "n": 2}, "best_of", "best_of is 1; it must be at least n, 2"),
        ("a", {"stream": True}, "stream", "stream is a parameter of the HTTP API alone"),
        ("", {}, "prompt", "prompt is empty"),
        ("x" * 600, {}, "prompt", "the prompt has 600 tokens"),
        ([5, 999], {}, "prompt", "the prompt has token id 999"),
        ("\ud800", {}, "prompt", "surrogate"),
        (5, {}, "prompt", "prompt is 5; it must be a text or a list of token ids"),
        ([["a"], 5], {}, "prompt", "prompt"),
    ],
)
def test_what_is_refused(make_llm: MakeLLM, prompt: Any, options: dict[str, Any], param: str, message: str) -> None:
    engine = FakeEngineClient()
    llm = make_llm(engine)
    calls: list[Callable[[], object]] = [lambda: llm.stream(prompt, **options)]
    if isinstance(prompt, str):
        calls.append(lambda: llm.generate(prompt, **options))
    for call in calls:
        with pytest.raises(InvalidParameter) as refused:
            call()
        assert refused.value.param == param
        assert message in str(refused.value)
    with pytest.raises(InvalidParameter) as refused:
        llm.generate(["fine", "fine too", prompt], **options)
    assert refused.value.param == param
    assert str(refused.value).startswith("prompts[0]: " if options else "prompts[2]: ")
    assert engine.submitted == []


def test_params_must_be_as_many_as_prompts(llm: LLM) -> None:
    with pytest.raises(InvalidParameter, match="params has 1 entries for 2 prompts"):
        llm.generate(["a", "b"], [SamplingParams()])


def test_chat(llm: LLM) -> None:
    first, second = {"role": "user", "content": "hello"}, {"role": "user", "content": "bye"}
    assert llm.chat([first]).text == render(first)
    assert [output.text for output in llm.chat([[first], [second]], progress=False)] == [render(first), render(second)]
    with llm.stream_chat([first, second]) as stream:
        assert "".join(delta.text for delta in stream) == render(first, second)


@pytest.mark.parametrize("messages", [[], [{"role": "pirate", "content": "a"}], [{"role": "user"}], "hello"])
def test_messages_that_are_refused(llm: LLM, messages: Any) -> None:
    for call in (llm.chat, llm.stream_chat, llm.count_tokens):
        if (call == llm.count_tokens and isinstance(messages, str)) or (call == llm.chat and messages == []):
            continue  # a text to count; no conversations at all
        with pytest.raises(InvalidParameter) as refused:
            call(messages)
        assert refused.value.param.startswith("messages")


def test_a_model_that_is_not_made_for_chat(make_llm: MakeLLM) -> None:
    llm = make_llm(text_model=FakeTextModel(chat_template=None))
    with pytest.raises(InvalidParameter, match="no chat template"):
        llm.chat([{"role": "user", "content": "hello"}])
    with pytest.raises(InvalidParameter, match="no chat template"):
        llm.count_tokens([{"role": "user", "content": "hello"}])


def test_count_tokens(llm: LLM) -> None:
    message = {"role": "user", "content": "hello"}
    assert llm.count_tokens("é!") == 3
    assert llm.count_tokens("") == 0
    assert llm.count_tokens([message]) == len(render(message)) == llm.chat([message]).usage.num_prompt_tokens


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


def test_logprobs_come_with_outputs_and_deltas(llm: LLM) -> None:
    output = llm.generate("abc", logprobs=2, prompt_logprobs=0)
    assert output.logprobs == [token_logprobs(token_id, 2) for token_id in (97, 98, 99, EOS)]
    assert output.prompt_logprobs == [None, token_logprobs(98, 0), token_logprobs(99, 0)]
    assert output.answers[0].cumulative_logprob == -(98 + 99 + 100 + EOS + 1) / 32
    deltas = list(llm.stream("abc", SamplingParams(logprobs=0, prompt_logprobs=0)))
    assert [logprobs for delta in deltas for logprobs in delta.logprobs or ()] == [
        token_logprobs(token_id, 0) for token_id in (97, 98, 99, EOS)
    ]
    assert [delta.prompt_logprobs for delta in deltas] == [output.prompt_logprobs] + [None] * (len(deltas) - 1)
    chat = llm.chat([{"role": "user", "content": "hello"}], logprobs=True, top_logprobs=1, max_tokens=1)
    assert chat.logprobs == [token_logprobs(ord("u"), 1)]
    plain = llm.generate("abc")
    assert (plain.logprobs, plain.prompt_logprobs, plain.answers[0].cumulative_logprob) == (None, None, None)


def test_the_best_of_several(make_llm: MakeLLM) -> None:
    engine = FakeEngineClient(respond=lambda _, params: [[98, 98], [97, 122], [97]][(params.seed or 0) - 5])
    llm = make_llm(engine)
    output = llm.generate("x", n=2, best_of=3, seed=5, max_tokens=1)
    assert [(answer.index, answer.text) for answer in output.answers] == [(0, "a"), (1, "a")]
    assert output.usage.num_completion_tokens == 3
    with pytest.raises(InvalidParameter, match="when streaming they must be equal"):
        llm.stream("x", best_of=2)


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


def test_threads_share_the_model(make_llm: MakeLLM) -> None:
    llm = make_llm(FakeEngineClient(max_num_queued=5))

    def work(number: int) -> list[str]:
        prompts = [f"{number}-{index}" for index in range(5)]
        streamed = "".join(delta.text for delta in llm.stream(prompts[0]))
        return [streamed, *(output.text for output in llm.generate(prompts, progress=False))]

    with ThreadPoolExecutor(8) as workers:
        for number, texts in enumerate(workers.map(work, range(16))):
            assert texts == [f"{number}-0", *(f"{number}-{index}" for index in range(5))]


async def test_it_works_where_a_loop_runs_already(llm: LLM) -> None:
    assert llm.generate("abc").text == "abc"
    assert "".join(delta.text for delta in llm.stream("abc")) == "abc"
    assert (await asyncio.to_thread(llm.generate, "abc")).text == "abc"


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


def interrupt_when(holds: Callable[[], bool]) -> None:
    """Presses Ctrl-C, in a while."""

    def press() -> None:
        wait_until(holds)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press).start()


def test_an_interrupt_aborts_a_batch_that_waits_for_room(make_llm: MakeLLM) -> None:
    engine = FakeEngineClient(max_model_len=100_000, max_num_queued=8)
    llm = make_llm(engine)
    interrupt_when(lambda: len(engine.running) == 8)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["abc"] * 20, progress=False, **ENDLESS)
    assert engine.running == {}
    assert len(engine.submitted) == len(engine.aborted) == 8
    assert llm.generate("abc").text == "abc"


def test_an_interrupt_aborts_a_stream(make_llm: MakeLLM) -> None:
    engine = FakeEngineClient(is_manual=True)
    llm = make_llm(engine)
    stream = llm.stream("abc")
    interrupt_when(lambda: bool(llm._engine._thread._tasks))  # it waits for a delta
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    wait_until(lambda: not engine.running)


def test_a_failed_engine_is_told_of(make_llm: MakeLLM) -> None:
    engine = FakeEngineClient(is_manual=True)
    llm = make_llm(engine)
    stream = llm.stream("abc")

    async def fail() -> None:
        engine.fail("the device is gone")

    def fail_when_all_run(_progress: BatchProgress) -> None:
        if len(engine.running) == 4:
            llm._engine.run(fail())

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
                call.result(5)
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
        "from tests.server.offline.test_llm import *\n"
        "llm = LLM.from_loaded(LoadedModel(endless_engine().client, FakeTextModel().model), model='fake',"
        " config=EngineConfig())\n"
        "stream = llm.stream('abc', **ENDLESS)\n"
        "print(next(stream).text != '')\n"
        "threading.Thread(target=llm.generate, args=('abc',), kwargs=ENDLESS, daemon=True).start()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.stdout, ended.returncode) == ("True\n", 0), ended.stderr
