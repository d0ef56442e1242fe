"""Streams of token ids read from the engine's client in this process, without text and HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from benchmarks.microbenchmarks.step_loop import Decoded, greedy
from engine.client import EngineClient, TokenStream
from engine.engine import Engine
from engine.interface.types import FinishReason
from sampling.host.grammar import TokenMatcher
from sampling.host.params import SamplingParams
from server.cli.bench.load.report import full_rate
from server.cli.bench.load.trace import Arrival, Trace


class StreamFailed(RuntimeError):
    """A stream did not end by its length."""


class StreamRequest(NamedTuple):
    """A request whose stream is read."""

    prompt: Sequence[int]
    params: SamplingParams
    matcher: TokenMatcher | None = None


def run_streams(engine: Engine, prompts: Sequence[Sequence[int]], num_output_tokens: int, *, overlap: bool) -> Decoded:
    """Decodes the prompts greedily, as `run_requests`."""
    params = greedy(num_output_tokens)
    return run_requests(engine, [StreamRequest(prompt, params) for prompt in prompts], overlap=overlap)


def run_requests(engine: Engine, requests: Sequence[StreamRequest], *, overlap: bool) -> Decoded:
    """Submits all requests at once and decodes them, with the overlapped or the synchronous loop.

    Raises:
        StreamFailed: a stream did not end by its length, or at no time did all streams run.
    """
    engine.config = replace(engine.config, overlap=overlap)  # takes effect when the client makes its loop
    return asyncio.run(_run_requests(EngineClient(engine), requests))


async def _run_requests(client: EngineClient, requests: Sequence[StreamRequest]) -> Decoded:
    traces = [Trace() for _ in requests]
    client.start(asyncio.get_running_loop())
    try:
        streams = [client.submit(prompt, params, matcher=matcher) for prompt, params, matcher in requests]
        outputs = await asyncio.gather(*map(_read, streams, traces))
    finally:
        client.shutdown()
    rate = full_rate(traces, len(requests))
    if rate is None:
        raise StreamFailed(f"{len(requests)} streams never flowed at once")
    return Decoded(rate, outputs)


async def _read(stream: TokenStream, trace: Trace) -> list[int]:
    output: list[int] = []
    async for event in stream:
        output += event.token_ids
        if event.token_ids:
            trace.arrivals.append(Arrival(time.perf_counter(), len(event.token_ids)))
        if event.finish_reason not in (None, FinishReason.LENGTH):
            raise StreamFailed(f"stream {stream.request_id} ended with {event.finish_reason}: {event.error}")
    return output
