"""Measures what a router adds to a stream: time to the first token, processor time a token, memory a stream.

Behind it is Eagre over an engine that emits one token in each turn of the loop, so that the router is what is measured.
"""

import asyncio
import sys
from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

import aiohttp

from benchmarks.serving.resources import ResidentMemory, process_tree, time_of
from benchmarks.serving.server_process import ServerProcess
from benchmarks.serving.stream_client import StreamLost, new_session, stream_completion

NUM_FIRST_TOKENS = 101  # requests one after the other, directly and through the router in turn
NUM_STREAMS = 64
NUM_TOKENS = 400
NUM_OPEN = 500  # streams that are open at once where memory is measured
BEGUN_WITHIN_S = 120.0
LONG = 20_000  # tokens of one of them
MODEL = "fake"  # as the server of benchmarks.fanout calls its own


class FrontCost(NamedTuple):
    first_text_ms: float  # that the router adds, the median of pairs
    router_us: float  # processor time of the router and its processes for each token
    eagre_us: float  # and of the server behind it


class FrontMemory(NamedTuple):
    router_bytes: float  # resident memory of the router for each open stream
    eagre_bytes: float  # and of the server behind it


def instant_server() -> ServerProcess:
    """Eagre over an engine that computes nothing."""
    command = [sys.executable, "-m", "benchmarks.fanout.eagre_server"]
    return ServerProcess("Eagre", lambda port: [*command, str(port)])


async def measure_front(front: ServerProcess, server: ServerProcess) -> FrontCost:
    """What a token costs; raises StreamLost if a stream was not whole."""
    pids = (front.pid, server.pid)
    async with new_session() as session:
        added = await _added_first_text(session, front.url, server.url)
        before = _processor_seconds(pids)
        await asyncio.gather(*(stream_completion(session, front.url, _body(NUM_TOKENS)) for _ in range(NUM_STREAMS)))
        spent = [after - start for start, after in zip(before, _processor_seconds(pids), strict=True)]
        router_us, eagre_us = (1e6 * seconds / (NUM_STREAMS * NUM_TOKENS) for seconds in spent)
    return FrontCost(1000 * added, router_us, eagre_us)


async def measure_memory(front: ServerProcess, server: ServerProcess) -> FrontMemory:
    """The memory of an open stream that is not read; raises StreamLost if not all have begun."""
    async with new_session() as session:
        return FrontMemory(*await _bytes_of_streams(session, front.url, (front.pid, server.pid)))


def _body(num_tokens: int) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "the tide", "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}


async def _added_first_text(session: aiohttp.ClientSession, front: str, server: str) -> float:
    differences = []
    for _ in range(NUM_FIRST_TOKENS):
        direct = (await stream_completion(session, server, _body(1))).first_text
        routed = (await stream_completion(session, front, _body(1))).first_text
        assert direct is not None
        assert routed is not None
        differences.append(routed - direct)
    return median(differences)


async def _bytes_of_streams(session: aiohttp.ClientSession, front: str, pids: Sequence[int]) -> list[float]:
    """By how much the processes have grown once every stream has begun, for each of them."""
    begun = 0
    all_begun, is_over = asyncio.Event(), asyncio.Event()
    before = _resident(pids)

    async def stream() -> None:
        nonlocal begun
        body = {**_body(LONG), "stream": True}
        async with session.post(f"{front}/v1/completions", json=body) as response:
            response.raise_for_status()  # a refusal is no open stream
            async for _ in response.content.iter_any():
                begun += 1
                break
            if begun == NUM_OPEN:
                all_begun.set()
            await is_over.wait()  # reads nothing more, so that the stream stops
            response.close()

    streams = [asyncio.create_task(stream()) for _ in range(NUM_OPEN)]
    try:
        async with asyncio.timeout(BEGUN_WITHIN_S):
            await all_begun.wait()
        grown = [after - start for start, after in zip(before, _resident(pids), strict=True)]
    except TimeoutError:
        raise StreamLost(f"{begun} of {NUM_OPEN} streams had begun after {BEGUN_WITHIN_S:g} s") from None
    finally:
        is_over.set()
        if not all_begun.is_set():
            for task in streams:
                task.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
    return [size / NUM_OPEN for size in grown]


def _processor_seconds(pids: Sequence[int]) -> list[float]:
    return [sum(time_of(each) or 0.0 for each in process_tree(pid)) for pid in pids]


def _resident(pids: Sequence[int]) -> list[int]:
    return [sum(_resident_of(each) for each in process_tree(pid)) for pid in pids]


def _resident_of(pid: int) -> int:
    try:
        memory = ResidentMemory.of(pid)
    except ProcessLookupError:  # one of a router's processes has ended just now
        return 0
    return 0 if memory is None else memory.now
