"""Decoding by an engine in this process, without text and HTTP: its compiled steps alone, or streams of its client.

The steps alone are an upper bound of its speed: the scheduler plans all of them, and their arrays are built, before the
clock starts. Only a length ends these requests, so no plan depends on the tokens.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from engine.backends.native.kernel_times import KernelTime, taken_kernel_times, timed_kernels
from engine.client import EngineClient, TokenStream
from engine.engine import Engine
from engine.interface.types import AdapterChoice, FinishReason
from engine.schedule.request import Request
from engine.schedule.step_plan import StepPlan, StepResult
from engine.step.inputs import StepInputs
from sampling.host.grammar import TokenMatcher
from sampling.host.params import SamplingParams
from server.cli.bench.load.report import full_rate
from server.cli.bench.load.trace import Arrival, Trace

SEED = 0  # greedy tokens do not depend on it, but the tokens of a simulated device do


@dataclass(frozen=True, slots=True)
class Decoded:
    """The result of prompts that were decoded in one batch."""

    tokens_per_s: float  # in the time in which all of them decoded
    token_ids: list[list[int]]  # the output of each prompt
    tokens_per_cpu_s: float = 0.0  # the same, of the processor time of the process; 0: it was not measured


class BuiltStep(NamedTuple):
    plan: StepPlan
    inputs: StepInputs

    def is_decode_of(self, num_requests: int) -> bool:
        """Whether the step computes one token of each request and nothing else."""
        return self.plan.num_tokens == [1] * num_requests and all(self.plan.samples)


class StepTime(NamedTuple):
    seconds: float  # from the dispatch to the tokens on the host
    kernels: list[KernelTime]


def greedy(num_output_tokens: int) -> SamplingParams:
    """Parameters for exactly so many tokens, each the most probable one."""
    return SamplingParams(temperature=0.0, max_tokens=num_output_tokens, ignore_eos=True, seed=SEED)


def run_steps(
    engine: Engine, prompts: Sequence[Sequence[int]], num_output_tokens: int, *,
    adapters: Sequence[AdapterChoice | None] | None = None,
) -> Decoded:  # fmt: skip
    """Decodes the prompts greedily without the loop of the engine, which must be idle or not running.

    Args:
        adapters: of the prompts; None: none has one.

    Raises ValueError: the engine has too few slots or pages to decode all prompts at once.
    """
    requests = _requests(prompts, num_output_tokens, adapters)
    steps = _build_all(engine, requests)
    full = [index for index, step in enumerate(steps) if step.is_decode_of(len(requests))]
    if not full:
        raise ValueError(f"the engine cannot decode {len(requests)} requests of {num_output_tokens} tokens at once")

    first, end = full[0], full[-1] + 1
    results = _compute(engine, steps[:first])
    start, cpu_start = time.perf_counter(), time.process_time()
    results += _compute(engine, steps[first:end])
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    results += _compute(engine, steps[end:])
    # The commits leave the engine as it was, with nothing in flight and all pages released.
    for step, result in zip(steps, results, strict=True):
        engine.scheduler.commit(step.plan, result)
    outputs = [request.token_ids[request.num_prompt_tokens :] for request in requests]
    num_tokens = len(requests) * len(full)
    return Decoded(num_tokens / seconds, outputs, num_tokens / cpu_seconds)


def timed_steps(engine: Engine, prompts: Sequence[Sequence[int]], num_output_tokens: int) -> list[StepTime]:
    """Decodes the prompts greedily, one step at a time, without the loop of the engine, whose kernels are native.

    Returns the steps in which all prompts decode, each of one token of each; with one output token, the step in which
    the prompts end. Raises ValueError as `run_steps`.
    """
    steps = _build_all(engine, _requests(prompts, num_output_tokens))
    times, results = list[StepTime](), list[StepResult]()
    for step in steps:
        with timed_kernels():
            start = time.perf_counter()
            results += _compute(engine, [step])
            seconds = time.perf_counter() - start
        if step.is_decode_of(len(prompts)) if num_output_tokens > 1 else step is steps[-1]:
            times.append(StepTime(seconds, taken_kernel_times()))
    for step, result in zip(steps, results, strict=True):
        engine.scheduler.commit(step.plan, result)
    return times


def _requests(
    prompts: Sequence[Sequence[int]], num_output_tokens: int, adapters: Sequence[AdapterChoice | None] | None = None
) -> list[Request]:
    params = greedy(num_output_tokens)
    return [
        Request(
            f"steps-{index}",
            list(prompt),
            params,
            SEED,
            max_length=len(prompt) + num_output_tokens,
            adapter=None if adapters is None else adapters[index],
        )
        for index, prompt in enumerate(prompts)
    ]


def _build_all(engine: Engine, requests: Sequence[Request]) -> list[BuiltStep]:
    """Builds every step up to the last token of the last request; raises ValueError where that cannot be planned."""
    for request in requests:
        engine.scheduler.add(request)
    steps = []
    while (plan := engine.scheduler.schedule()) is not None:
        steps.append(BuiltStep(plan, engine.runner.build(plan)))
    num_sampled = sum(step.inputs.num_sampled for step in steps)
    if num_sampled < sum(request.params.max_tokens for request in requests):
        raise ValueError(f"the engine cannot decode {len(requests)} requests of {num_sampled} tokens at once")
    return steps


def _compute(engine: Engine, steps: Sequence[BuiltStep]) -> list[StepResult]:
    """The result of each step; all steps are enqueued before the first result is awaited."""
    pending = [engine.runner.enqueue(*step) for step in steps]
    return [engine.runner.result(step) for step in pending]


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

    Raises StreamFailed: a stream did not end by its length, or at no time did all streams run.
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
