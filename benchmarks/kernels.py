"""Times each native kernel within whole steps of the engine, for any model, with the bounds by memory and arithmetic.

    python -m benchmarks.kernels                       # 1, 4, 16, 64 decode rows and a chunk of 256 tokens
    python -m benchmarks.kernels --rows 1 --context 1000
    python -m benchmarks.kernels --model qwen2.5-coder-1.5b --rows 8 --tiles

An engine computes greedy steps one at a time, and its kernels tell how long each of their calls took, what it had to
read and what it computed; calls on weights of one shape stand together. All that is not a kernel is XLA's own work,
the dispatch and the way of the result. The floors: all bytes that the step must read, at the rate at which a thread on
each core reads memory, measured in the same run; and all its operations, at the best rate that a product reached in the
same run. Of recurrent layers and of pictures only times are known.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from benchmarks.microbenchmarks.decoding import StepTime, timed_steps
from benchmarks.microbenchmarks.timing import READS, Case, MemoryReader
from benchmarks.serving.command import at_least_one, new_parser, run, write_figures
from benchmarks.serving.engines import load_engine
from cache.storage import PAGE_SIZE_BY_BACKEND
from engine.backends.base.backend import BackendUnavailable
from engine.backends.native.kernel_times import KernelTime
from engine.engine import Engine
from engine.interface.config import TILE_SIZE, EngineConfig
from server.startup.settings import DEFAULT_MODEL

PROGRAM = "benchmarks.kernels"
_LEAST_TILES = 16  # of a step, so that the prompts of many rows take few steps
_WHOLE_STEP, _REST = "whole step", "all that is not a kernel"


class Timing(NamedTuple):
    """One kernel in a step, or the whole step."""

    name: str
    seconds: float  # median
    num_calls: int
    num_bytes: int  # that it must read: weights, and of pages what the context holds
    num_operations: int  # multiplications and additions


def timings_of(steps: Sequence[StepTime]) -> list[Timing]:
    """Each kernel, the longest first, what is none, and the whole step; medians of steps of one kind."""
    by_kernel: dict[tuple[str, int, int], list[KernelTime]] = {}
    for step in steps:
        for kernel in step.kernels:
            by_kernel.setdefault((kernel.name, kernel.num_outputs, kernel.num_inputs), []).append(kernel)
    kernels = [
        Timing(
            f"{name} {outputs}x{inputs}" if outputs else name,
            median(kernel.seconds for kernel in calls),
            calls[0].num_calls, calls[0].num_bytes, calls[0].num_operations,
        )
        for (name, outputs, inputs), calls in by_kernel.items()
    ]  # fmt: skip
    rest = median(step.seconds - sum(kernel.seconds for kernel in step.kernels) for step in steps)
    whole = median(step.seconds for step in steps)
    kernels.sort(key=lambda timing: -timing.seconds)
    return [*kernels, Timing(_REST, rest, 0, 0, 0), Timing(_WHOLE_STEP, whole, 0, 0, 0)]


def measured(engine: Engine, case: Case, repeats: int) -> list[StepTime]:
    """So many steps of a case, of random tokens; one more, the first, is not counted."""
    random = np.random.default_rng(0)
    num_prompt_tokens = case.context if case.num_tiles else case.context - 1
    prompts = random.integers(0, engine.model_info.vocab_size, (case.num_sequences, num_prompt_tokens))
    if case.num_tiles:
        return [timed_steps(engine, prompts.tolist(), 1)[0] for _ in range(repeats + 1)][1:]
    # The first prompts decode while others are computed, so that their contexts are a little longer.
    num_prompt_steps = -(-prompts.size // engine.scheduler.max_num_batched_tokens)
    return timed_steps(engine, prompts.tolist(), repeats + 2 + num_prompt_steps)[1 : repeats + 1]


def report(case: Case, timings: Sequence[Timing], bytes_per_second: float, operations_per_second: float) -> None:
    """A table of one case."""
    step, width = timings[-1].seconds, max(len(timing.name) for timing in timings) + 2
    print(f"\n{case.label}\n{'':{width}s}{'calls':>6s}{'us':>10s}{'of step':>9s}{'GB/s':>8s}{'Gop/s':>8s}")
    for timing in timings:
        rates = [timing.num_bytes / timing.seconds / 1e9, timing.num_operations / timing.seconds / 1e9]
        shown = "".join(f"{rate:8.1f}" if rate else " " * 8 for rate in rates)
        calls = f"{timing.num_calls or '':6}"
        print(f"{timing.name:{width}s}{calls}{timing.seconds * 1e6:10,.0f}{timing.seconds / step:9.1%}{shown}".rstrip())
    by_memory = sum(timing.num_bytes for timing in timings) / bytes_per_second
    by_arithmetic = sum(timing.num_operations for timing in timings) / operations_per_second
    print(f"floor by memory {by_memory * 1e6:,.0f} us, by arithmetic {by_arithmetic * 1e6:,.0f} us")


def main(arguments: Sequence[str]) -> int:
    parser = new_parser(PROGRAM, __doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a built-in model, or path of a model")
    parser.add_argument("--rows", type=at_least_one, nargs="*", default=[1, 4, 16, 64], help="decode rows, a case each")
    parser.add_argument(
        "--tiles", type=at_least_one, nargs="*", default=[4], help=f"chunks of {TILE_SIZE} prompt tokens each"
    )
    parser.add_argument("--context", type=at_least_one, default=200, help="tokens behind each decode row (200)")
    parser.add_argument("--dtype", choices=["auto", "float32", "bfloat16"], default="auto", help="as the server's")
    parser.add_argument("--kv", default="auto", help="type of the pages, as the server's --kv-cache-dtype")
    parser.add_argument("--repeats", type=at_least_one, default=30)
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    options = parser.parse_args(arguments)
    cases = [Case(rows, 0, options.context) for rows in options.rows]
    cases += [Case(0, tiles, tiles * TILE_SIZE) for tiles in options.tiles]
    if not cases:
        parser.error("neither --rows nor --tiles has a number")
    num_sequences = max(case.num_sequences for case in cases)
    num_batched = TILE_SIZE * max([_LEAST_TILES, *options.tiles])
    length = max(case.context for case in cases) + options.repeats + 2
    length += -(-num_sequences * options.context // num_batched)
    page_size = PAGE_SIZE_BY_BACKEND["cpu"]
    try:
        engine = load_engine(
            options.model,
            EngineConfig(
                matmul_backend="native", attention_backend="native", dtype=options.dtype, kv_cache_dtype=options.kv,
                max_num_seqs=num_sequences, max_num_batched_tokens=num_batched, target_gap=0.0,
                enable_prefix_caching=False, max_model_len=length,
                num_pages=1 + num_sequences * (-(-length // page_size) + 1),
            ),
        )  # fmt: skip
    except BackendUnavailable as reason:
        parser.error(str(reason))
    timings = {case: timings_of(list(measured(engine, case, options.repeats))) for case in cases}
    reader = MemoryReader()
    bytes_per_second = max(reader.rate() for _ in range(READS))
    products = [t for each in timings.values() for t in each if t.num_operations and t.name != "attention"]
    operations_per_second = max(timing.num_operations / timing.seconds for timing in products)
    print(f"{engine.model_info.backend_detail}; memory is read at {bytes_per_second / 1e9:.1f} GB/s")
    for case, each in timings.items():
        report(case, each, bytes_per_second, operations_per_second)
    figures = {case.label: [timing._asdict() for timing in each] for case, each in timings.items()}
    write_figures(options.json, PROGRAM, arguments, bytes_per_second=bytes_per_second, cases=figures)
    engine.close()
    return 0


if __name__ == "__main__":
    run(PROGRAM, main)
