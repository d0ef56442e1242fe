"""What sampling costs: its share of a step, and what structured output takes from the throughput.

    python -m benchmarks.sampler                       # 64 rows
    python -m benchmarks.sampler --rows 1 16 64 --turns 9

Shares: so many requests of one kind decode side by side; of each step the forward pass and the
sampling are run one behind the other and timed apart. The kinds take turns.

    greedy             temperature 0
    top-p              temperature 0.8, top_p 0.95
    everything         every parameter there is, a grammar's mask and 20 logprobs

Throughput: streams read by the engine's client in this process while all of them flow, none, half
or all of them with a JSON schema; the ways take turns.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import jax
import numpy as np
import orjson

from benchmarks.bare.engine_streams import StreamRequest, run_requests
from benchmarks.serving.command import run, write_figures
from benchmarks.serving.processor import Disturbance
from engine.engine import Engine
from engine.interface.types import FinishReason
from engine.schedule.request import Request
from engine.schedule.step_plan import StepPlan
from engine.step.grammar_masks import fill_masks
from sampling.host.params import SamplingParams
from server.cli.bench.load.workload import Workload
from server.model_sources.model_store import ensure_model
from server.protocol.structured_outputs import Grammar, GrammarKind
from server.startup.progress import ProgressReporter
from server.startup.settings import ServerSettings
from server.structured_output.grammar_compiler import GrammarCompiler
from server.text.text_model import TextModel

PROGRAM = "benchmarks.sampler"
NUM_TURN_STEPS = 10  # that are timed, of one turn
WARM_STEPS = 2  # that are not, before them
NUM_OUTPUT_TOKENS = 100  # at most; some are decoded while prompts are still on their way
SCHEMA = {
    "type": "array",
    "minItems": 1000,  # it shall not end by itself
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 40},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": False,
    },
}


class AllowAll:
    """A grammar of every text: its mask is made and applied, and changes nothing."""

    ends_output = False

    def accept(self, token_id: int) -> None:
        pass

    def fill_mask(self, words: np.ndarray) -> None:
        words.fill(0xFFFFFFFF)


def kinds(vocab_size: int) -> dict[str, dict[str, Any]]:
    """Parameters by kind."""
    return {
        "greedy": {"temperature": 0.0},
        "top-p": {"temperature": 0.8, "top_p": 0.95},
        "everything": {
            "temperature": 0.9, "top_k": 100, "top_p": 0.95, "min_p": 0.001, "typical_p": 0.98, "top_n_sigma": 5.0,
            "repetition_penalty": 1.05, "frequency_penalty": 0.1, "presence_penalty": 0.1,
            "dry_multiplier": 0.8, "xtc_probability": 0.3, "min_tokens": NUM_OUTPUT_TOKENS,
            "logit_bias": tuple((token_id, 0.5) for token_id in range(min(300, vocab_size))),
            "allowed_token_ids": tuple(range(vocab_size // 8, vocab_size)),
            "bad_words": tuple((token_id, token_id + 1) for token_id in range(vocab_size // 2, vocab_size // 2 + 20)),
            "logprobs": 20, "logprob_token_ids": tuple(range(100, 110)),
        },
    }  # fmt: skip


def prompts_of(load: Workload, engine: Engine) -> list[list[int]]:
    """The workload's prompts, for a vocabulary of any size."""
    vocab_size = engine.model_info.vocab_size
    return [[token_id % vocab_size for token_id in prompt] for prompt in load.token_prompts()]


class StepTimes(NamedTuple):
    """Of one step, in seconds."""

    forward: float
    sample: float


def time_turn(
    engine: Engine, prompts: Sequence[Sequence[int]], params: SamplingParams, grammar: bool
) -> list[StepTimes]:
    """Decodes the prompts side by side for a few steps; the engine's loop must not be running."""
    requests = [
        Request(
            f"{index}",
            list(prompt),
            params,
            index,
            len(prompt) + params.max_tokens,
            matcher=AllowAll() if grammar else None,
        )
        for index, prompt in enumerate(prompts)
    ]
    for request in requests:
        engine.scheduler.add(request)
    times: list[StepTimes] = []
    while len(times) < WARM_STEPS + NUM_TURN_STEPS:
        plan = engine.scheduler.schedule()
        assert plan is not None
        step = time_step(engine, plan)
        if plan.num_tokens == [1] * len(requests):
            times.append(step)
    engine.scheduler.abort_all(FinishReason.ABORT)
    return times[WARM_STEPS:]


def time_step(engine: Engine, plan: StepPlan) -> StepTimes:
    """One step of the engine, its two programs one behind the other."""
    runner = engine.runner
    step = runner.build(plan)._replace(awaits_masks=True)  # so that the forward pass is enqueued alone
    begin = time.perf_counter()
    pending = runner.enqueue(plan, step)
    jax.block_until_ready(pending.logits)
    forward = time.perf_counter() - begin
    masks = runner.new_masks(pending)
    fill_masks(pending, masks)
    begin = time.perf_counter()
    runner.sample(pending, masks)
    jax.block_until_ready(pending.out)
    sample = time.perf_counter() - begin
    engine.scheduler.commit(plan, runner.result(pending))
    return StepTimes(forward, sample)


def measure_shares(engine: Engine, rows: int, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """By kind: the medians of forward pass and sampling in seconds, and the share of the two that sampling has."""
    load = Workload(url="", model="", num_requests=rows, num_prompt_tokens=options.context, num_output_tokens=1)
    prompts = prompts_of(load, engine)
    times: dict[str, list[StepTimes]] = {}
    for _ in range(options.turns):
        for kind, wishes in kinds(engine.model_info.vocab_size).items():
            params = SamplingParams(max_tokens=NUM_OUTPUT_TOKENS, ignore_eos=True, **wishes)
            times.setdefault(kind, []).extend(time_turn(engine, prompts, params, grammar=kind == "everything"))
    figures = {}
    for kind, steps in times.items():
        forward, sample = (median(column) for column in zip(*steps, strict=True))
        figures[kind] = {"forward": forward, "sample": sample, "share": sample / (forward + sample)}
    return figures


def measure_throughput(
    engine: Engine, text_model: TextModel, rows: int, options: argparse.Namespace
) -> dict[str, list[float]]:
    """Tokens per second of each turn, by how many of the streams have a schema."""
    compiler = GrammarCompiler(text_model.tokenizer, engine.model_info.vocab_size)
    grammar = compiler.compile_here(Grammar(GrammarKind.JSON_SCHEMA, orjson.dumps(SCHEMA).decode()), "schema")
    params = SamplingParams(max_tokens=options.output_len, temperature=0.8, top_p=0.95, ignore_eos=True)
    rates: dict[str, list[float]] = {}
    for turn in range(options.turns):
        load = Workload(
            url="", model="", num_requests=rows, num_prompt_tokens=32, num_output_tokens=options.output_len, seed=turn
        )
        for way, num_structured in {"none": 0, "half": (rows + 1) // 2, "all": rows}.items():
            requests = [
                StreamRequest(
                    prompt,
                    dataclasses.replace(params, seed=index),
                    grammar.matcher() if index < num_structured else None,
                )
                for index, prompt in enumerate(prompts_of(load, engine))
            ]
            rates.setdefault(way, []).append(run_requests(engine, requests, overlap=True).tokens_per_s)
    return rates


def main(arguments: Sequence[str]) -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {PROGRAM}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="a built-in model, or path of a model")
    parser.add_argument("--rows", type=int, nargs="+", default=[64])
    parser.add_argument("--turns", type=int, default=5, help="of each kind and each way")
    parser.add_argument("--context", type=int, default=200, help="tokens behind each row")
    parser.add_argument("--output-len", type=int, default=96, help="tokens of each stream")
    parser.add_argument("--num-pages", type=int, default=1500, help="cache pages of the engine")
    parser.add_argument("--skip", choices=["shares", "throughput"], help="leave one part out")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    options = parser.parse_args(arguments)
    flags = {"model": options.model, "num_pages": options.num_pages, "max_num_seqs": max(options.rows)}
    settings = ServerSettings.from_sources(flags, os.environ)
    with ProgressReporter() as progress:
        path = ensure_model(settings.model, progress)
        text_model = TextModel.load(path)
        engine = Engine.load(path, settings.engine_config(), progress)
    figures: dict[str, Any] = {}
    for rows in options.rows:
        disturbance = Disturbance()
        if options.skip != "shares":
            figures[f"shares at {rows} rows"] = shares = measure_shares(engine, rows, options)
            print(f"\n{rows} rows{'':12s}{'forward ms':>12s}{'sample ms':>12s}{'share':>8s}")
            for kind, of in shares.items():
                print(f"{kind:19s}{of['forward'] * 1e3:12.2f}{of['sample'] * 1e3:12.3f}{of['share']:8.1%}")
        if options.skip != "throughput":
            figures[f"throughput at {rows} streams"] = rates = measure_throughput(engine, text_model, rows, options)
            plain = median(rates["none"])
            print(f"\n{rows} streams, of them with a schema{'tokens/s':>12s}{'of none':>10s}")
            for way, turns in rates.items():
                print(f"{way:33s}{median(turns):12,.0f}{median(turns) / plain:10.1%}")
        others = disturbance.share()
        print("" if others is None else f"others had {others:.1%} of the processor")
    if options.json is not None:
        write_figures(options.json, PROGRAM, arguments, figures=figures)
    return 0


if __name__ == "__main__":
    run(PROGRAM, main)
