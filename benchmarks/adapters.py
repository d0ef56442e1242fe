"""Measures what low-rank adapters cost the steps of a batch.

    python -m benchmarks.adapters                      # 32 rows, 16 adapters of rank 16
    EAGRE_THREADS=1 python -m benchmarks.adapters      # for tokens/CPU-s: threads that wait would count
    python -m benchmarks.adapters --model qwen2.5-coder-0.5b --rank 32 --rows 8

Two engines of one model decode the same prompts in turns, by their compiled steps alone, so that nothing else dilutes
the cost: one without adapters, and one that has room for them, where no row has an adapter (unused), all rows have the
same one, or the rows have as many as there are, in turn. Adapters are random, and change every product that they can.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.microbenchmarks.decoding import run_steps
from benchmarks.serving.alternation import Measured, add_alternation_flags, alternate, finish
from benchmarks.serving.command import at_least_one, new_parser, run
from benchmarks.serving.engines import COMPILED, load_engine
from engine.adapters.adapter_stacks import padded_rank
from engine.adapters.adapter_weights import AdapterWeights, LeafPair, weights_of
from engine.adapters.targets import AdapterTarget, targets_of
from engine.engine import Engine
from engine.interface.config import TILE_SIZE, AdapterLimits, EngineConfig
from engine.interface.types import AdapterChoice
from server.startup.settings import DEFAULT_MODEL

PROGRAM = "benchmarks.adapters"
PROMPT_TOKENS = TILE_SIZE
FIRST_TOKEN = 1000  # of the prompts; below are control tokens
SIZE = 0.02  # of the numbers of the second halves: small changes, as those of real adapters are


def random_adapter(targets: Sequence[AdapterTarget], rank: int, seed: int) -> AdapterWeights:
    """An adapter that changes all targets."""
    draw, padded = np.random.default_rng(seed), padded_rank(rank)
    pairs = {}
    for target in targets:
        layers, parts = len(target.layers), len(target.parts)
        down = np.zeros((layers, parts, padded, target.num_inputs), np.float32)
        up = np.zeros((layers, padded, target.ends[-1]), np.float32)
        down[:, :, :rank] = draw.standard_normal((layers, parts, rank, target.num_inputs), np.float32)
        up[:, :rank] = SIZE * draw.standard_normal((layers, rank, target.ends[-1]), np.float32)
        down *= target.num_inputs**-0.5
        pairs[target.name] = LeafPair(down.reshape(layers, parts * padded, target.num_inputs), up, rank)
    return weights_of(pairs)


def load_adapters(engine: Engine, num_adapters: int, rank: int) -> list[AdapterChoice]:
    """Fills the first slots of an engine that does not run; raises ValueError where its model takes no adapters."""
    targets = targets_of(engine.runner.model)
    choices = []
    for slot in range(num_adapters):
        weights = random_adapter(targets, rank, slot)
        engine.load_adapter(slot, weights)
        choices.append(AdapterChoice(slot, weights.digest))
    return choices


def main(arguments: Sequence[str]) -> int:
    parser = new_parser(PROGRAM, __doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="built-in name, or path of a file or folder")
    parser.add_argument("--rows", type=at_least_one, default=32, metavar="N", help="of each step")
    parser.add_argument("--adapters", type=at_least_one, default=16, metavar="N", help="that the rows have in turn")
    parser.add_argument("--rank", type=at_least_one, default=16, metavar="N", help="of all adapters")
    parser.add_argument("--steps", type=at_least_one, default=24, metavar="N", help="of each turn")
    add_alternation_flags(parser, rounds=9)
    options = parser.parse_args(arguments)

    num_rows, length = options.rows, PROMPT_TOKENS + options.steps + 1
    config = EngineConfig(
        max_num_seqs=num_rows,
        max_num_batched_tokens=8 * TILE_SIZE,
        max_model_len=2 * length,
        target_gap=0.0,
        enable_prefix_caching=False,
        compilation_cache=COMPILED,
    )
    plain = load_engine(options.model, config)
    limits = AdapterLimits(options.adapters, options.rank)
    adapted = load_engine(options.model, replace(config, adapters=limits))
    choices = load_adapters(adapted, options.adapters, options.rank)
    draw = random.Random(options.seed)
    vocabulary = range(FIRST_TOKEN, plain.model_info.vocab_size)
    prompts = [draw.choices(vocabulary, k=PROMPT_TOKENS) for _ in range(num_rows)]

    def contender(engine: Engine, adapters: Sequence[AdapterChoice | None]) -> Callable[[int], Measured]:
        in_turn = [adapters[row % len(adapters)] for row in range(num_rows)]

        def measure(_: int) -> Measured:
            decoded = run_steps(engine, prompts, options.steps, adapters=in_turn)
            return Measured({"tokens/s": decoded.tokens_per_s, "tokens/CPU-s": decoded.tokens_per_cpu_s})

        return measure

    several = f"{options.adapters} adapters"
    contenders = {
        "plain": contender(plain, [None]),
        "unused": contender(adapted, [None]),
        "one adapter": contender(adapted, choices[:1]),
        several: contender(adapted, choices),
    }
    for measure in contenders.values():
        measure(0)  # pages and programs are touched for the first time
    turns = alternate(
        f"{num_rows} rows, rank {options.rank}", contenders, range(options.rounds), max_others=options.max_others
    )
    ratios = [(name, "plain") for name in list(contenders)[1:]]
    status = finish(turns, list(contenders), options, PROGRAM, arguments, ratios=ratios)
    plain.close()
    adapted.close()
    return status


if __name__ == "__main__":
    run(PROGRAM, main)
