"""Times the native attention kernels alone: prompts and decode rows, by the shapes of some models' heads.

    python -m benchmarks.microbenchmarks.attention                                        # all shapes, bfloat16 pages
    python -m benchmarks.microbenchmarks.attention --shapes llama-3.2-1b --kv int8 --repeats 50
    python -m benchmarks.microbenchmarks.attention --prompts --rows 16 64 --contexts 64 200 1000 7000 --layers 2
    EAGRE_NATIVE_VARIANT=avx2 python -m benchmarks.microbenchmarks.attention

No model is read: keys, values and queries are random. A prompt is timed where it hurts, in its last chunk of 256
tokens, with the whole context before it. A run goes through some layers, as a step does, so that the pages of many rows
do not stay in the processor's caches. Printed are the shortest and the median time of a layer, and the rates of the
shortest one: multiplications and additions, and bytes of pages that must be read once. The last column is the best
rate at which a thread on each core reads memory, measured in the same minute.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.microbenchmarks.timing import READS, Case, MemoryReader, donating, time_calls
from benchmarks.serving.command import at_least_one, new_parser, run, write_figures
from cache.storage import PAGE_SIZE_BY_BACKEND, KVLayout, KVPages
from engine.backends.native.attention import attention
from engine.backends.native.library import load
from engine.interface.config import TILE_SIZE

PROGRAM = "benchmarks.microbenchmarks.attention"
CHUNK_TILES = 4  # of a prompt; 256 tokens, which is the default budget of a step
RANDOM_NUMBERS = 1 << 20  # they are repeated


class Heads(NamedTuple):
    """A model's heads."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


SHAPES = {"smollm2-135m": Heads(9, 3, 64), "llama-3.2-1b": Heads(32, 8, 64)}


class Timing(NamedTuple):
    """A case of a shape."""

    shape: str
    case: str
    context: int
    shortest: float  # seconds
    median: float  # seconds
    num_operations: float
    num_bytes: int
    bytes_per_second: float  # of a plain read of memory, the best


def layers_program(
    qkv: jax.Array, rows: jax.Array, table: jax.Array, heads: Heads, num_layers: int, num_tiles: int
) -> Callable[[KVPages], tuple[jax.Array, KVPages]]:
    """Attention through all layers, compiled; the pages are donated and updated in place, as in a step."""
    num_tokens = qkv.shape[0]
    rotations, nothing = jnp.ones((1, num_tokens, heads.head_dim), jnp.float32), jnp.zeros(0, jnp.float32)
    of_layers = jnp.zeros(num_layers, jnp.int32)

    def attend(layer: jax.Array, carry: tuple[jax.Array, KVPages]) -> tuple[jax.Array, KVPages]:
        return attention(
            qkv, rotations, of_layers, of_layers, nothing, nothing, rows, table, layer, carry[1],
            num_heads=heads.num_heads, num_tiles=num_tiles, scale=heads.head_dim**-0.5, epsilon=0.0,
        )  # fmt: skip

    def attend_all(kv: KVPages) -> tuple[jax.Array, KVPages]:
        start = jnp.zeros((num_tokens, heads.num_heads * heads.head_dim), jnp.float32)
        attended, kv = lax.fori_loop(0, num_layers, attend, (start, kv))
        return attended, kv

    return jax.jit(attend_all, donate_argnums=0)


def cost_of(case: Case, heads: Heads, dtype: str) -> tuple[int, int]:
    """The bytes of pages that a layer must read, and its multiplications and additions."""
    row_bytes = 2 * heads.num_kv_heads * heads.head_dim * jnp.dtype(dtype).itemsize
    operations = 4 * case.num_tokens * case.num_keys_seen * heads.num_heads * heads.head_dim
    return case.num_sequences * case.context * row_bytes, int(operations)


def measure(name: str, case: Case, dtype: str, layers: int, repeats: int, reader: MemoryReader) -> Timing:
    """Times a layer of a case."""
    heads, pages = SHAPES[name], case.pages_per_sequence
    rows, table = [], np.zeros((case.num_rows + case.num_tiles, pages), np.int32)
    for row in range(case.num_rows):
        rows.append((case.context - 1, 1))
        table[row] = 1 + row * pages + np.arange(pages)
    for tile in range(case.num_tiles):
        rows.append((case.context - (case.num_tiles - tile) * TILE_SIZE, TILE_SIZE))
        table[case.num_rows + tile] = 1 + np.arange(pages)
    page_size, num_pages = PAGE_SIZE_BY_BACKEND["cpu"], 1 + case.num_sequences * pages
    layout = KVLayout(layers, num_pages, page_size, heads.num_kv_heads, heads.head_dim, dtype)
    random = np.random.default_rng(0)
    width = (heads.num_heads + 2 * heads.num_kv_heads) * heads.head_dim
    qkv = jnp.asarray(random.standard_normal((case.num_tokens, width)).astype(np.float32))
    program = layers_program(qkv, jnp.asarray(rows, jnp.int32), jnp.asarray(table), heads, layers, case.num_tiles)
    times = time_calls(donating(program, _random_pages(layout, random)), repeats)
    rates = [reader.rate() for _ in range(READS)]
    num_bytes, num_operations = cost_of(case, heads, dtype)
    shortest, middle = min(times) / layers, median(times) / layers
    return Timing(name, case.label, case.context, shortest, middle, num_operations, num_bytes, max(rates))


def _random_pages(layout: KVLayout, random: np.random.Generator) -> KVPages:
    if layout.dtype == "int8":
        data = np.resize(random.integers(-127, 128, RANDOM_NUMBERS, np.int8), layout.shape)
        return KVPages(jnp.asarray(data), jnp.full(layout.shape[:-1], 0.01, jnp.float32))
    numbers = random.standard_normal(RANDOM_NUMBERS, np.float32).astype(jnp.dtype(layout.dtype))
    return KVPages(jnp.asarray(np.resize(numbers, layout.shape)), None)


def main(arguments: Sequence[str]) -> int:
    parser = new_parser(PROGRAM, __doc__)
    parser.add_argument("--shapes", nargs="*", choices=sorted(SHAPES), default=list(SHAPES))
    parser.add_argument("--prompts", type=int, nargs="*", default=[1024, 7000], help="tokens of prompts (1024 7000)")
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 16, 64], help="decode rows (1 16 64)")
    parser.add_argument("--contexts", type=int, nargs="*", default=[200], help="tokens behind each decode row (200)")
    parser.add_argument("--layers", type=at_least_one, default=8, help="layers of a run (8)")
    parser.add_argument("--kv", choices=["float32", "bfloat16", "int8"], default="bfloat16", help="type of the pages")
    parser.add_argument("--repeats", type=at_least_one, default=20)
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    options = parser.parse_args(arguments)
    if min([*options.prompts, CHUNK_TILES * TILE_SIZE]) < CHUNK_TILES * TILE_SIZE:
        parser.error(f"--prompts is of {CHUNK_TILES * TILE_SIZE} tokens at least")
    cases = [Case(0, CHUNK_TILES, prompt) for prompt in options.prompts]
    cases += [Case(rows, 0, context) for context in options.contexts for rows in options.rows]
    print(f"{load()}, {options.kv} pages\n{'':48s}{'min us':>10s}{'median':>10s}{'Gop/s':>8s}{'GB/s':>8s}{'read':>8s}")
    timings, reader = [], MemoryReader()
    for name in options.shapes:
        for case in cases:
            timing = measure(name, case, options.kv, options.layers, options.repeats, reader)
            timings.append(timing)
            print(
                f"{f'{name}: {timing.case}':48s}{timing.shortest * 1e6:10,.0f}"
                f"{timing.median * 1e6:10,.0f}{timing.num_operations / timing.shortest / 1e9:8.1f}"
                f"{timing.num_bytes / timing.shortest / 1e9:8.1f}{timing.bytes_per_second / 1e9:8.1f}"
            )
    figures = [timing._asdict() for timing in timings]
    write_figures(options.json, PROGRAM, arguments, variant=load(), timings=figures)
    return 0


if __name__ == "__main__":
    run(PROGRAM, main)
