"""Events on their way from the engine thread to listeners and readers."""

from __future__ import annotations

import asyncio
import math
import os
import sys
import threading
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from engine.delivery import Delivery, LoopSignal
from engine.interface.types import FinishReason, TokenEvent
from engine.schedule.request import Request
from engine.schedule.request_event import NewTokens, RequestEvent
from engine.token_stream import TokenStream
from sampling.host.params import SamplingParams
from sampling.logprobs import NUM_COLUMNS, OWN
from tests.patience import PATIENCE_S


class Box:
    """An outbox that is a listener too. It notes what it gets, and every flush."""

    def __init__(self) -> None:
        self.noted: list[object] = []

    def receive(self, event: TokenEvent) -> Box:
        self.noted.append((event.token_ids, event.finish_reason))
        return self

    def receive_tokens(self, token_ids: Sequence[int]) -> Box:
        self.noted.append(list(token_ids))
        return self

    def flush(self) -> None:
        self.noted.append("flush")


class Way:
    """A delivery whose wake-ups come when the test says so."""

    def __init__(self) -> None:
        self.wakes: list[Callable[[], None]] = []
        self.ended: list[str] = []
        self.delivery = Delivery(self.wakes.append, self.ended.append)

    def request(self, request_id: str, params: SamplingParams | None = None) -> Request:
        request = Request(request_id, [1], params or SamplingParams(), 0, 100)
        request.mailbox = TokenStream(request, lambda _: None)
        return request

    def deliver(self) -> None:
        while self.wakes:
            self.wakes.pop(0)()


def test_waiting_turns_share_a_wake_up_and_a_flush() -> None:
    way, box = Way(), Box()
    first, second = way.request("a"), way.request("b")
    for request in (first, second):
        request.mailbox.listen(box)
    way.delivery.publish([RequestEvent(first, [1], None), RequestEvent(second, [2], None)])
    way.delivery.publish([RequestEvent(first, [3], FinishReason.LENGTH)])
    assert len(way.wakes) == 1
    way.deliver()
    assert box.noted == [[1], [2], ([3], FinishReason.LENGTH), "flush"]
    assert way.ended == ["a"]
    way.delivery.publish([RequestEvent(second, [4], None)])
    way.deliver()
    assert box.noted[4:] == [[4], "flush"]


def test_new_tokens_of_many_requests_reach_listeners_and_readers_in_their_order() -> None:
    way, box = Way(), Box()
    heard, read, ended = way.request("a"), way.request("b"), way.request("c")
    heard.mailbox.listen(box)
    ended.mailbox.listen(box)
    way.delivery.publish([RequestEvent(ended, (), FinishReason.ABORT)])
    way.delivery.publish([NewTokens([heard, read, ended], [1, 2, 3]), RequestEvent(heard, [4], FinishReason.STOP)])
    way.delivery.publish([NewTokens([read], [5])])
    way.deliver()
    assert box.noted == [([], FinishReason.ABORT), [1], ([4], FinishReason.STOP), "flush"]
    assert read.mailbox.take().token_ids == [2, 5]
    assert way.ended == ["c", "a"]


def test_what_is_published_during_a_delivery_has_a_wake_up_of_its_own() -> None:
    way, box = Way(), Box()
    request = way.request("a")
    request.mailbox.listen(box)
    late = [RequestEvent(request, [2], None)]
    box.flush = lambda: way.delivery.publish(late) if late else None  # type: ignore[method-assign]
    way.delivery.publish([RequestEvent(request, [1], None)])
    way.wakes.pop(0)()
    assert box.noted == [[1]]
    late.clear()
    assert len(way.wakes) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no eventfd")
async def test_a_signal_of_another_thread_runs_a_function_in_the_loop_until_it_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files, threads, sent, ran = list[int](), list[threading.Thread](), list[bool](), asyncio.Event()
    open_file = os.eventfd
    monkeypatch.setattr(os, "eventfd", lambda *arguments: files.append(open_file(*arguments)) or files[0])

    def note() -> None:
        threads.append(threading.current_thread())
        ran.set()

    signal = LoopSignal(asyncio.get_running_loop(), note)
    for _ in range(2):
        ran.clear()
        sent.append(await asyncio.to_thread(signal.send))
        await asyncio.wait_for(ran.wait(), PATIENCE_S)
    signal.close()
    signal.close()
    assert signal.send()  # by a thread that does not know it yet
    await asyncio.sleep(0.01)
    assert threads == [threading.current_thread()] * 2
    assert sent == [True, True]
    os.fstat(files[0])
    del signal
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(files[0])


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no eventfd")
def test_a_closed_loop_takes_no_signal() -> None:
    loop = asyncio.new_event_loop()
    signal = LoopSignal(loop, lambda: None)
    loop.close()
    assert not signal.send()


async def test_reader_and_listener_take_turns_without_a_loss() -> None:
    way, box = Way(), Box()
    request = way.request("a")
    stream: TokenStream = request.mailbox
    way.delivery.publish([RequestEvent(request, [1], None)])
    way.delivery.publish([RequestEvent(request, [2], None)])
    way.deliver()
    stream.listen(box)  # gets what waits
    assert box.noted == [([1, 2], None), "flush"]
    way.delivery.publish([RequestEvent(request, [3], None)])
    way.deliver()
    stream.listen(None)
    way.delivery.publish([RequestEvent(request, [4], None)])
    way.deliver()
    event = await asyncio.wait_for(stream.__anext__(), PATIENCE_S)
    assert event.token_ids == [4]
    stream.listen(box)
    stream.end(FinishReason.TIMEOUT, None)  # without a delivery: it is sent at once
    assert box.noted[2:] == [[3], "flush", ([], FinishReason.TIMEOUT), "flush"]
    assert [event async for event in stream] == []


async def test_one_reader_waits_for_several_streams() -> None:
    way = Way()
    requests = [way.request(name) for name in "abc"]
    streams = [request.mailbox for request in requests]
    reading = asyncio.create_task(streams[0].wait(streams[1:]))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="two readers"):
        await streams[2].wait()
    way.delivery.publish([RequestEvent(requests[1], [1], None), RequestEvent(requests[2], [2], FinishReason.STOP)])
    way.deliver()
    await asyncio.wait_for(reading, PATIENCE_S)
    assert [stream.has_news for stream in streams] == [False, True, True]
    assert streams[1].take().token_ids == [1]
    await asyncio.wait_for(streams[0].wait(streams[1:]), PATIENCE_S)  # the third is still to be read
    assert streams[2].take().finish_reason is FinishReason.STOP
    assert [stream.has_news for stream in streams[:2]] == [False, False]


def logprobs_of(own: float) -> np.ndarray:
    columns = np.zeros((1, NUM_COLUMNS), np.int32)
    columns.view(np.float32)[:, OWN] = own
    return columns


@pytest.mark.parametrize("of_prompt", [False, True])
def test_logprobs_that_are_not_numbers_end_their_request(of_prompt: bool) -> None:
    """Written as JSON they would be null."""
    way, box = Way(), Box()
    aborted: list[str] = []
    request = Request("a", [1, 2], SamplingParams(logprobs=0, prompt_logprobs=0), 0, 100)
    request.mailbox = TokenStream(request, aborted.append)
    request.mailbox.listen(box)
    way.delivery.publish([RequestEvent(request, [3], None, logprobs=logprobs_of(-1.0))])
    broken = logprobs_of(math.nan)
    event = RequestEvent(
        request, [4], None, logprobs=None if of_prompt else broken, prompt_logprobs=[broken] if of_prompt else None
    )
    way.delivery.publish([event])
    way.deliver()
    assert aborted == ["a"]
    assert box.noted == [([3], None), ([], FinishReason.ERROR), "flush"]
