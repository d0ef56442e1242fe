"""Times one layer's experts: random weights in the shapes of known mixtures, by the number of rows.

    python -m benchmarks.experts                        # Qwen3-30B-A3B's and OLMoE's, 1, 8, 32 and 512 rows
    python -m benchmarks.experts --shape olmoe --rows 8

Each time is the best of several over layers in turn, so that few weights are still in the cache. Printed too is the
time of a dense gated block of the same work, which has as many inner features as a token's experts together.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.microbenchmarks.timing import time_calls
from benchmarks.serving.command import at_least_one, new_parser, run
from engine.backends.base.operands import Activation, Picks
from engine.backends.base.token_layout import token_layout
from engine.backends.native.backend import NativeProducts
from engine.weights.packing import Format, PackedMatrix, Placement

PROGRAM = "benchmarks.experts"


class Shape(NamedTuple):
    num_experts: int
    num_picked: int
    hidden: int
    inner: int


SHAPES = {"qwen3-30b-a3b": Shape(128, 8, 2048, 768), "olmoe": Shape(64, 8, 2048, 1024)}
NUM_LAYERS, NUM_ROUNDS, TILE = 2, 12, 64
PAGE = 16


def random_stack(count: int, outputs: tuple[int, ...], inputs: int, kind: Format) -> PackedMatrix:
    """Blocks of random numbers, with scales that keep the products small."""
    tiles = [size // 16 for size in outputs]
    placement = Placement.of([[kind] * len(outputs)] * count, tiles, inputs, is_gated=len(outputs) > 1)
    blocks = np.random.default_rng(0).integers(0, 256, placement.num_bytes, np.uint8)
    if kind is Format.INT4:
        blocks.reshape(-1, 288)[:, :32] = np.full(16, 0.01, np.float16).view(np.uint8)
    return PackedMatrix(jnp.asarray(blocks), placement, sum(outputs))


def layout_of(num_rows: int) -> Any:
    if num_rows <= 64:
        rows, num_tiles = np.array([[4, 1, 0, 0]] * num_rows, np.int32), 0
    else:
        num_tiles = num_rows // TILE
        rows = np.array([[0, TILE, 0, 0]] * num_tiles, np.int32)
    table = 1 + np.arange(len(rows), dtype=np.int32)[:, None].repeat(8, axis=1)
    return token_layout(rows, table, num_tiles=num_tiles, tile_size=TILE, page_size=PAGE)


def seconds(shape: Shape, num_rows: int) -> tuple[float, float]:
    """Of a layer's experts, and of the dense block."""
    random = np.random.default_rng(num_rows)
    products, layout = NativeProducts(), layout_of(num_rows)
    count = NUM_LAYERS * shape.num_experts
    gate_up = random_stack(count, (shape.inner, shape.inner), shape.hidden, Format.INT4)
    down = random_stack(count, (shape.hidden,), shape.inner, Format.INT4)
    wide = shape.inner * shape.num_picked
    dense_up = random_stack(NUM_LAYERS, (wide, wide), shape.hidden, Format.INT4)
    dense_down = random_stack(NUM_LAYERS, (shape.hidden,), wide, Format.INT4)
    x = random.standard_normal((num_rows, shape.hidden)).astype(np.float32)
    picked = np.stack([random.permutation(shape.num_experts)[: shape.num_picked] for _ in range(num_rows)])
    shares = random.uniform(0.05, 0.2, picked.shape).astype(np.float32)

    @jax.jit
    def experts(total: jax.Array, x: jax.Array, gate_up: Any, down: Any, layer: jax.Array) -> jax.Array:
        picks = Picks(jnp.asarray(picked, jnp.int32), jnp.asarray(shares), shape.num_experts)
        return products.add_experts(total, x, gate_up, down, picks, layer, layout, activation=Activation.SILU)

    @jax.jit
    def dense(total: jax.Array, x: jax.Array, gate_up: Any, down: Any, layer: jax.Array) -> jax.Array:
        inner = products.norm_product(
            x, None, gate_up, layer, layout, activation=Activation.SILU, is_gated=True
        )  # fmt: skip
        return products.add_product(total, inner, down, layer, layout)

    def timed(program: Any, *weights: Any) -> float:
        layers = itertools.cycle(range(NUM_LAYERS))
        calls = time_calls(lambda: program(x, x, *weights, jnp.int32(next(layers))), NUM_ROUNDS * NUM_LAYERS)
        return min(calls)

    return timed(experts, gate_up, down), timed(dense, dense_up, dense_down)


def main(arguments: Sequence[str]) -> int:
    parser = new_parser(PROGRAM, __doc__)
    parser.add_argument("--shape", choices=SHAPES, action="append", help="all of them by default")
    parser.add_argument("--rows", type=at_least_one, nargs="+", default=[1, 8, 32, 512])
    options = parser.parse_args(arguments)
    for name in options.shape or SHAPES:
        for num_rows in options.rows:
            experts, dense = seconds(SHAPES[name], num_rows)
            print(f"{name:14} {num_rows:4} rows: experts {experts * 1e3:8.2f} ms, dense {dense * 1e3:8.2f} ms")
    return 0


if __name__ == "__main__":
    run(PROGRAM, main)
