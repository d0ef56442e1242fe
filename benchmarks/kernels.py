"""Times each native kernel of a step alone, the whole step, and the bounds by memory and arithmetic.

    python -m benchmarks.kernels                       # 1, 4, 16, 64 decode rows and a chunk of 256 tokens
    python -m benchmarks.kernels --rows 1 --context 1000

Every kernel runs in a program of its own over all layers, on the model's weights and on pages of
the given context; one alone with few rows finds its weights in the cache, as the whole step does
not. The floors: all bytes that the step must read, at the rate at which a thread on each core
reads memory, measured in the same run; and all its operations, at the best rate that a product
reached in the same run.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.microbenchmarks.attention import Heads, cost_of, layers_program
from benchmarks.microbenchmarks.timing import READS, Case, MemoryReader, donating, time_calls
from benchmarks.serving.command import new_parser, run, write_figures
from benchmarks.serving.engines import model_path
from cache.storage import PAGE_SIZE_BY_BACKEND, KVPages
from engine.backends.backends import choose_backends, kv_dtype
from engine.backends.base.operands import Activation, NormKind
from engine.backends.base.token_layout import NUM_TOKENS, SLOT, START
from engine.backends.native.products import add_product, head_product, norm_product
from engine.backends.native.sampler import argmax
from engine.interface.config import TILE_SIZE, EngineConfig
from engine.models.architectures.llama import Llama
from engine.models.open_model import open_model
from engine.step.forward import forward
from engine.step.inputs import StepBatch
from engine.step.shapes import StepShape
from engine.weights.layout import Precision
from engine.weights.packing import PackedMatrix
from sampling.state import Slots
from server.startup.progress import ProgressReporter
from server.startup.settings import DEFAULT_MODEL

PROGRAM = "benchmarks.kernels"


class Timing(NamedTuple):
    """One kernel over all layers, or the whole step."""

    name: str
    seconds: float  # median
    num_bytes: int  # that it must read: weights, and of pages what the context holds
    num_operations: int  # multiplications and additions


class Bench:
    """The model's weights and pages, and programs that run parts of a step on them."""

    def __init__(self, path: Path, dtype: str, kv: str, repeats: int) -> None:
        config = EngineConfig(matmul_backend="native", attention_backend="native", dtype=dtype, kv_cache_dtype=kv)
        opened = open_model(path)
        if not isinstance(opened.model, Llama):
            raise ValueError(f"{path} is of the architecture {opened.architecture.name!r}, whose parts are not timed")
        self.model = opened.model
        self.config = opened.model.config
        self.backends = choose_backends(config, self.config)
        with ProgressReporter() as progress:
            self.params = opened.load(self.backends.weights, Precision.of_engine(config), progress).params
        self.kv_dtype = kv_dtype(config, self.backends)
        self._repeats = repeats

    def timings(self, case: Case) -> Iterator[Timing]:
        """Each kernel, then the whole step."""
        config, params, tokens = self.config, self.params, case.num_tokens
        batch = self._batch(case)
        rows, num_tiles = jnp.asarray(batch.rows), case.num_tiles
        random, nothing = np.random.default_rng(0), jnp.zeros(0, jnp.float32)

        def activations(width: int) -> jax.Array:
            return jnp.asarray(random.standard_normal((tokens, width)).astype(np.float32))

        hidden, wide = activations(config.hidden_size), activations(config.intermediate_size)
        queries = activations(config.q_size)

        def norm(norms: jax.Array, weights: PackedMatrix, layer: jax.Array, *, is_gated: bool) -> jax.Array:
            return norm_product(
                hidden, rows, layer, norms, nothing, weights, nothing,
                norm_kind=NormKind.RMS, epsilon=config.rms_norm_eps, num_tiles=num_tiles,
                activation=Activation.SILU if is_gated else Activation.NONE, is_gated=is_gated,
            )  # fmt: skip

        def add(x: jax.Array, weights: PackedMatrix, layer: jax.Array) -> jax.Array:
            return add_product(hidden, x, rows, layer, weights, nothing, num_tiles=num_tiles)

        for name, matrix, body in (
            ("qkv", params["qkv"], partial(norm, params["attention_norm"], is_gated=False)),
            ("attention output", params["attention_output"], partial(add, queries)),
            ("gate and up", params["gate_up"], partial(norm, params["mlp_norm"], is_gated=True)),
            ("down", params["down"], partial(add, wide)),
        ):
            assert isinstance(matrix, PackedMatrix)
            seconds = self._time(self._over_layers(body), matrix)
            yield Timing(name, seconds, matrix.blocks.nbytes, 2 * _num_weights(matrix) * tokens)

        yield self._attention(case, batch, self._pages(case), activations(config.q_size + 2 * config.kv_size))
        head = params["output" if config.has_output else "embedding"]
        assert isinstance(head, PackedMatrix)
        sampled = jnp.asarray(batch.sampled)

        def logits_of(matrix: PackedMatrix) -> jax.Array:
            return head_product(
                hidden, sampled, params["output_norm"][0], nothing, matrix,
                norm_kind=NormKind.RMS, epsilon=config.rms_norm_eps, bias=nothing,
            )  # fmt: skip

        project = jax.jit(logits_of)
        num_sampled = int((batch.sampled >= 0).sum())
        yield Timing("head", self._time(project, head), head.blocks.nbytes, 2 * _num_weights(head) * num_sampled)
        logits, slots = project(head), jnp.arange(len(sampled), dtype=jnp.int32)
        choose = jax.jit(lambda x: argmax(x, slots, len(sampled)))
        yield Timing("argmax", self._time(choose, logits), 4 * num_sampled * config.vocab_size, 0)

        yield Timing("step of padding", self._step(case, self._padding(case), self._pages(case)), 0, 0)
        yield Timing("whole step", self._step(case, batch, self._pages(case)), 0, 0)

    def _over_layers(self, body: Callable[[PackedMatrix, jax.Array], jax.Array]) -> Callable[[PackedMatrix], jax.Array]:
        def all_layers(matrix: PackedMatrix) -> jax.Array:
            first = body(matrix, jnp.int32(0))
            last: jax.Array = lax.fori_loop(1, self.config.num_layers, lambda layer, _: body(matrix, layer), first)
            return last

        return jax.jit(all_layers)

    def _attention(self, case: Case, batch: StepBatch, kv: KVPages, qkv: jax.Array) -> Timing:
        config = self.config
        heads = Heads(config.num_heads, config.num_kv_heads, config.head_dim)
        rows, table = jnp.asarray(batch.rows), jnp.asarray(batch.page_table)
        program = layers_program(qkv, rows, table, heads, config.num_layers, case.num_tiles)
        seconds = median(time_calls(donating(program, kv), self._repeats))
        num_bytes, num_operations = cost_of(case, heads, str(self.kv_dtype))
        return Timing("attention", seconds, num_bytes * config.num_layers, num_operations * config.num_layers)

    def _step(self, case: Case, batch: StepBatch, kv: KVPages) -> float:
        program = jax.jit(partial(forward, model=self.model, backends=self.backends, groups=None), donate_argnums=1)
        slots = Slots.zeros(max(1, case.num_rows))

        def step(kv: KVPages) -> tuple[jax.Array, KVPages]:
            logits, kv = program(self.params, kv, slots, batch)
            return logits, kv

        return median(time_calls(donating(step, kv), self._repeats))

    def _time(self, program: Callable[[Any], jax.Array], argument: object) -> float:
        return median(time_calls(lambda: program(argument), self._repeats))

    def _padding(self, case: Case) -> StepBatch:
        shape = StepShape(case.num_rows, case.num_tiles)
        return StepBatch.padding(shape, max(1, case.num_rows), 2 * case.pages_per_sequence)

    def _batch(self, case: Case) -> StepBatch:
        batch, pages = self._padding(case), case.pages_per_sequence
        for row in range(case.num_rows):
            batch.rows[row, [START, NUM_TOKENS, SLOT]] = case.context - 1, 1, row
            batch.page_table[row, :pages] = 1 + row * pages + np.arange(pages)
        for tile in range(case.num_tiles):
            start = case.context - (case.num_tiles - tile) * TILE_SIZE
            batch.rows[case.num_rows + tile, [START, NUM_TOKENS]] = start, TILE_SIZE
            batch.page_table[case.num_rows + tile, :pages] = 1 + np.arange(pages)
        batch.sampled[:] = np.arange(len(batch.sampled)) if case.num_rows else case.num_tokens - 1
        return batch

    def _pages(self, case: Case) -> KVPages:
        num_pages = 1 + case.num_sequences * case.pages_per_sequence
        return self.config.kv_layout(
            num_pages, PAGE_SIZE_BY_BACKEND["cpu"], self.kv_dtype
        ).allocate()  # zeros: what matters is where it lies


def _num_weights(matrix: PackedMatrix) -> int:
    """In all layers, without what pads the tiles."""
    return len(matrix.placement.places) * matrix.num_outputs * matrix.num_inputs


def report(case: Case, timings: Sequence[Timing], bytes_per_second: float, operations_per_second: float) -> None:
    """A table of one case."""
    step = timings[-1].seconds
    print(f"\n{case.label}\n{'':18s}{'us':>10s}{'of step':>9s}{'GB/s':>8s}{'Gop/s':>8s}")
    for timing in timings:
        rates = [timing.num_bytes / timing.seconds / 1e9, timing.num_operations / timing.seconds / 1e9]
        shown = "".join(f"{rate:8.1f}" if rate else " " * 8 for rate in rates)
        print(f"{timing.name:18s}{timing.seconds * 1e6:10,.0f}{timing.seconds / step:9.1%}{shown}")
    by_memory = sum(timing.num_bytes for timing in timings if timing.name != "argmax") / bytes_per_second
    by_arithmetic = sum(timing.num_operations for timing in timings) / operations_per_second
    print(f"floor by memory {by_memory * 1e6:,.0f} us, by arithmetic {by_arithmetic * 1e6:,.0f} us")


def main(arguments: Sequence[str]) -> int:
    parser = new_parser(PROGRAM, __doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a built-in model, or path of a model")
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 4, 16, 64], help="decode rows, one case each")
    parser.add_argument("--tiles", type=int, nargs="*", default=[4], help=f"chunks of {TILE_SIZE} prompt tokens each")
    parser.add_argument("--context", type=int, default=200, help="tokens behind each decode row (200)")
    parser.add_argument("--dtype", choices=["auto", "float32", "bfloat16"], default="auto", help="as the server's")
    parser.add_argument(
        "--kv", choices=["auto", "float32", "bfloat16", "int8"], default="auto", help="type of the pages"
    )
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    options = parser.parse_args(arguments)
    bench = Bench(model_path(options.model), options.dtype, options.kv, options.repeats)
    cases = [Case(rows, 0, options.context) for rows in options.rows]
    cases += [Case(0, tiles, tiles * TILE_SIZE) for tiles in options.tiles]
    measured = {case: list(bench.timings(case)) for case in cases}
    reader = MemoryReader()
    bytes_per_second = max(reader.rate() for _ in range(READS))
    products = [t for timings in measured.values() for t in timings if t.num_operations and t.name != "attention"]
    operations_per_second = max(timing.num_operations / timing.seconds for timing in products)
    print(f"{bench.backends.detail}; memory is read at {bytes_per_second / 1e9:.1f} GB/s")
    for case, timings in measured.items():
        report(case, timings, bytes_per_second, operations_per_second)
    figures = {case.label: [timing._asdict() for timing in timings] for case, timings in measured.items()}
    write_figures(options.json, PROGRAM, arguments, bytes_per_second=bytes_per_second, cases=figures)
    return 0


if __name__ == "__main__":
    run(PROGRAM, main)
