"""What a step costs: a sum of five terms, measured on this machine by what the engine learns of its own steps."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from benchmarks.serving.engines import COMPILED, load_engine, running_client
from engine.client import EngineClient
from engine.interface.config import TILE_SIZE, EngineConfig
from engine.schedule.step_time.step_costs import StepWork
from sampling.host.params import SamplingParams

MAX_NUM_SEQS = 16
MAX_MODEL_LEN = 2048
CONTEXTS = (100, 400, 1600)
ROWS = (1, 4, 16)


@dataclass(frozen=True, slots=True)
class StepCost:
    """Milliseconds of the terms of a step."""

    step: float
    row: float  # of each decode row
    decode_token: float  # of each token of context that a decode row sees
    tile: float  # of each tile of a prompt
    tile_token: float  # of each token of context that a tile sees

    def milliseconds(self, num_rows: int, decode_context: int, num_tiles: int, tile_context: int) -> float:
        return (
            self.step
            + self.row * num_rows
            + self.decode_token * decode_context
            + self.tile * num_tiles
            + self.tile_token * tile_context
        )


# Of the default model on two cores with AVX-512 VNNI in quiet minutes: the table of whole steps in docs/performance.md,
# which `--measure-costs` of the simulation makes anew for another machine.
MEASURED = StepCost(step=4.0, row=0.48, decode_token=0.0014, tile=43.0, tile_token=0.0186)


def measure_costs(model: str) -> StepCost:
    """Runs the model in this process for some seconds and fits the terms to what its engine has learned."""
    config = EngineConfig(
        max_num_seqs=MAX_NUM_SEQS,
        max_model_len=MAX_MODEL_LEN,
        target_gap=0.0,
        enable_prefix_caching=False,
        compilation_cache=COMPILED,
    )
    engine = load_engine(model, config)
    client = EngineClient(engine)
    with running_client(client) as runner:
        runner.run(_teach(client, engine.model_info.vocab_size))
    works = [
        StepWork(rows, rows * context, tiles, tiles * context)
        for rows, context, tiles in product(ROWS, CONTEXTS, (0, 1, 4))
    ]
    return fit(works, [engine.scheduler.step_time.costs.predict(work) for work in works])


def fit(works: Sequence[StepWork], milliseconds: Sequence[float]) -> StepCost:
    """The terms whose sums come closest to these durations (least squares); none is below 0."""
    terms = np.array(
        [(1, work.num_decode_rows, work.decode_context, work.num_tiles, work.tile_context) for work in works], float
    )
    scale = terms.max(axis=0)  # so that all terms are of one order
    found, *_ = np.linalg.lstsq(terms / scale, np.asarray(milliseconds), rcond=None)
    return StepCost(*(float(value) for value in np.maximum(found / scale, 0.0)))


async def _teach(client: EngineClient, vocab_size: int) -> None:
    draw = random.Random(0)

    async def stream(num_prompt: int, num_output: int) -> None:
        prompt = draw.choices(range(vocab_size), k=num_prompt)
        params = SamplingParams(max_tokens=num_output, temperature=0.0, ignore_eos=True)
        async for _ in client.submit(prompt, params):
            pass

    for context, rows in product(CONTEXTS, ROWS):
        # Prompts of several lengths overlap with the decoding of others.
        await asyncio.gather(*(stream(context - TILE_SIZE * (number % 2), 24) for number in range(rows)))
