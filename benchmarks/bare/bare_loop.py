"""The bare step loop: an engine's own steps with nothing between them, the most that the device can give.

The steps are those that the engine's loops compute for the same requests: its scheduler plans them
and their arrays are built before the clock starts. No plan depends on the tokens, where nothing but
a length ends a request, and the device reads each input token from its own memory.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.engine import Engine
from engine.schedule.request import Request
from engine.schedule.step_plan import StepPlan, StepResult
from engine.step.inputs import StepInputs
from sampling.host.params import SamplingParams

SEED = 0  # greedy tokens depend on none; a simulated device's do


@dataclass(frozen=True, slots=True)
class Decoded:
    """What came of prompts that were decoded side by side."""

    tokens_per_s: float  # while all of them decoded
    token_ids: list[list[int]]  # of each prompt's output


class BuiltStep(NamedTuple):
    plan: StepPlan
    inputs: StepInputs

    def is_decode_of(self, num_requests: int) -> bool:
        """Whether it computes one token of each request and nothing else."""
        return self.plan.num_tokens == [1] * num_requests and all(self.plan.samples)


def greedy(num_output_tokens: int) -> SamplingParams:
    """Exactly so many tokens, each the best one."""
    return SamplingParams(temperature=0.0, max_tokens=num_output_tokens, ignore_eos=True, seed=SEED)


def run_bare(engine: Engine, prompts: Sequence[Sequence[int]], num_output_tokens: int) -> Decoded:
    """Decodes the prompts greedily without the engine's loop, which must be idle or not running.

    Raises:
        ValueError: the engine has not the slots or pages to decode all prompts at once.
    """
    params = greedy(num_output_tokens)
    requests = [
        Request(f"bare-{index}", list(prompt), params, SEED, max_length=len(prompt) + num_output_tokens)
        for index, prompt in enumerate(prompts)
    ]
    steps = _build_all(engine, requests)
    full = [index for index, step in enumerate(steps) if step.is_decode_of(len(requests))]
    if not full or sum(step.inputs.num_sampled for step in steps) < len(requests) * num_output_tokens:
        raise ValueError(f"the engine cannot decode {len(requests)} requests of {params.max_tokens} tokens at once")

    first, end = full[0], full[-1] + 1
    results = _compute(engine, steps[:first])
    start = time.perf_counter()
    results += _compute(engine, steps[first:end])
    seconds = time.perf_counter() - start
    results += _compute(engine, steps[end:])
    # Leaves the engine as it was: nothing in flight, all pages given back.
    for step, result in zip(steps, results, strict=True):
        engine.scheduler.commit(step.plan, result)
    outputs = [request.token_ids[request.num_prompt_tokens :] for request in requests]
    return Decoded(len(requests) * len(full) / seconds, outputs)


def _build_all(engine: Engine, requests: Sequence[Request]) -> list[BuiltStep]:
    """Every step up to the last token of the last request."""
    for request in requests:
        engine.scheduler.add(request)
    steps = []
    while (plan := engine.scheduler.schedule()) is not None:
        steps.append(BuiltStep(plan, engine.runner.build(plan)))
    return steps


def _compute(engine: Engine, steps: Sequence[BuiltStep]) -> list[StepResult]:
    """Each step's result; all steps are enqueued before the first is waited for."""
    pending = [engine.runner.enqueue(*step) for step in steps]
    return [engine.runner.result(step) for step in pending]
