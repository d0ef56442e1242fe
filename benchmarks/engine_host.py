"""Measures what a step costs the host, and whether the device has to wait for it.

    python -m benchmarks.engine_host                       # 1, 64 and 256 rows, steps of 5 ms
    python -m benchmarks.engine_host --rows 256 --steps 1000 --rounds 5

A simulated device takes a fixed time a step. All rows decode; their tokens are published into an
asyncio loop in another thread, where every stream has a reader. Three variants alternate:

    overlapped      as the engine runs
    synchronous     its oracle: dispatch, result, commit
    no cache        overlapped, prefix caching off; no prompt hits in any variant, so that the ratio overlapped/no cache
                    is what the prefix cache costs when it is of no use
"""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from benchmarks.microbenchmarks.simulated_device import STEP_SECONDS, VOCAB_SIZE, SimulatedEngine, SimulatedRunner
from benchmarks.serving.alternation import Measured, add_alternation_flags, alternate, finish
from benchmarks.serving.command import at_least_one, new_parser, run
from engine.client import EngineClient, TokenStream
from engine.interface.config import TILE_SIZE, EngineConfig
from engine.schedule.scheduler import Scheduler
from engine.schedule.step_plan import StepPlan
from engine.step.inputs import StepInputs
from engine.step.runner import PendingStep
from sampling.host.params import SamplingParams
from server.cli.memory import freeze_gc

PROGRAM = "benchmarks.engine_host"
PAGE_SIZE = 32  # tokens
PROMPT_LENGTHS = range(4, 4 + PAGE_SIZE)  # spread, so that every step fills some rows' pages
NUM_TILES = 16  # of prompts a step, so that all rows run soon
NUM_SETTLING_STEPS = 20  # left out at either end of a run

PARTS = ("schedule", "build", "dispatch", "commit", "wait")
VARIANTS = {
    "overlapped": {"overlap": True, "enable_prefix_caching": True},
    "synchronous": {"overlap": False, "enable_prefix_caching": True},
    "no cache": {"overlap": True, "enable_prefix_caching": False},
}

LEGEND = (
    "idle: share of time in which the device did nothing; all others of a step. thread: processor time of the engine\n"
    "thread. The rest is wall time in it: build and dispatch are the step's arrays and programs; rest is inbox,\n"
    "publishing and the loop itself; wait is for the device; wall is from one dispatch to the next."
)


class Meter:
    """Seconds so far of the parts of the engine thread's steps. Written by that thread alone."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self.totals = dict.fromkeys(PARTS, 0.0)
        self.full_steps: list[dict[str, float]] = []  # the totals at each step in which all rows decode

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose calls count as a part."""

        def call(*args: Any) -> Any:
            start = time.perf_counter()
            result = function(*args)
            self.totals[part] += time.perf_counter() - start
            return result

        return call

    def mark(self, plan: StepPlan, idle: float) -> None:
        """Records the totals where the step decodes every row and does nothing else."""
        if plan.num_rows == plan.num_scheduled_tokens == self.num_rows and all(plan.samples):
            now = {"wall": time.perf_counter(), "thread": time.thread_time(), "idle": idle}
            self.full_steps.append(self.totals | now)


class MeteredScheduler(Scheduler):
    def __init__(self, meter: Meter, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.schedule = meter.timed("schedule", self.schedule)  # type: ignore[method-assign]
        self.commit = meter.timed("commit", self.commit)  # type: ignore[method-assign]


class MeteredRunner(SimulatedRunner):
    def __init__(self, meter: Meter, *args: Any) -> None:
        super().__init__(*args)
        enqueue = meter.timed("dispatch", self.enqueue)

        def marked(plan: StepPlan, inputs: StepInputs) -> PendingStep:
            pending: PendingStep = enqueue(plan, inputs)
            meter.mark(plan, self.clock.idle_seconds)
            return pending

        self.build = meter.timed("build", self.build)  # type: ignore[method-assign]
        self.enqueue = marked  # type: ignore[method-assign]
        self.result = meter.timed("wait", self.result)  # type: ignore[method-assign]


def costs_between(
    first: dict[str, float], last: dict[str, float], num_steps: int, step_seconds: float
) -> dict[str, float]:
    """The figures of one step, from the totals at two full steps, each of which took the device `step_seconds`."""
    total = {name: last[name] - first[name] for name in first}
    total["rest"] = total["wall"] - sum(total[part] for part in PARTS)
    idle = total["idle"] / (total["idle"] + num_steps * step_seconds)
    shown = ("thread", "schedule", "build", "dispatch", "commit", "rest", "wait", "wall")
    return {"idle, %": 100 * idle, **{f"{name}, us": 1e6 * total[name] / num_steps for name in shown}}


def measure(
    num_rows: int, num_steps: int, step_seconds: float, *, overlap: bool, enable_prefix_caching: bool, seed: int
) -> dict[str, float]:
    """Decodes `num_rows` streams at once for `num_steps` steps; raises RuntimeError if they did not all run so long."""
    admission_steps = -(-num_rows // NUM_TILES)
    params = SamplingParams(max_tokens=num_steps + 2 * NUM_SETTLING_STEPS + 2 * admission_steps, ignore_eos=True)
    pages_per_row = -(-(PROMPT_LENGTHS.stop + params.max_tokens) // PAGE_SIZE) + 1
    config = EngineConfig(
        max_num_seqs=num_rows,
        max_num_batched_tokens=NUM_TILES * TILE_SIZE,
        target_gap=0.0,
        page_size=PAGE_SIZE,
        num_pages=num_rows * pages_per_row + 2,
        overlap=overlap,
        enable_prefix_caching=enable_prefix_caching,
        seed=seed,
    )
    meter = Meter(num_rows)
    engine = SimulatedEngine(
        config, step_seconds, runner=partial(MeteredRunner, meter), scheduler=partial(MeteredScheduler, meter)
    )
    draw = random.Random(seed)
    prompts = [draw.choices(range(VOCAB_SIZE), k=draw.choice(PROMPT_LENGTHS)) for _ in range(num_rows)]
    freeze_gc()  # as `eagre serve` does
    asyncio.run(_read_all(EngineClient(engine), prompts, params))
    full_steps = meter.full_steps[NUM_SETTLING_STEPS:]
    if len(full_steps) <= num_steps:
        raise RuntimeError(f"all {num_rows} rows decoded in {len(meter.full_steps)} steps only, {num_steps} are wanted")
    return costs_between(full_steps[0], full_steps[num_steps], num_steps, step_seconds)


async def _read_all(client: EngineClient, prompts: Sequence[Sequence[int]], params: SamplingParams) -> None:
    client.start(asyncio.get_running_loop())
    try:
        await asyncio.gather(*[_read(client.submit(prompt, params)) for prompt in prompts])
    finally:
        client.shutdown()


async def _read(stream: TokenStream) -> None:
    async for _ in stream:
        pass


def main(arguments: Sequence[str]) -> int:
    parser = new_parser(PROGRAM, __doc__)
    parser.add_argument("--rows", type=at_least_one, nargs="+", default=[1, 64, 256], metavar="N")
    parser.add_argument("--step-ms", type=float, default=1000 * STEP_SECONDS, help="of the simulated device")
    parser.add_argument("--steps", type=at_least_one, default=400, help="measured in each run")
    add_alternation_flags(parser)
    options = parser.parse_args(arguments)

    def contender(num_rows: int, choices: dict[str, bool]) -> Callable[[int], Measured]:
        return lambda seed: Measured(measure(num_rows, options.steps, options.step_ms / 1000, seed=seed, **choices))

    turns = []
    for num_rows in options.rows:
        contenders = {name: contender(num_rows, choices) for name, choices in VARIANTS.items()}
        turns += alternate(f"{num_rows} rows", contenders, range(options.rounds), max_others=options.max_others)
    ratios = [("overlapped", "synchronous"), ("overlapped", "no cache")]
    status = finish(turns, list(VARIANTS), options, PROGRAM, arguments, ratios=ratios)
    print(LEGEND)
    return status


if __name__ == "__main__":
    run(PROGRAM, main)
