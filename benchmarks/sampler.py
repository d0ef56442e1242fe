"""Measures what sampling costs: its share of a step, and what structured output takes from the throughput.

    python -m benchmarks.sampler                       # 64 rows
    python -m benchmarks.sampler --rows 1 16 64 --rounds 9

Shares: so many requests of one kind decode side by side; of each step the forward pass and the
sampling are run one behind the other and timed by themselves. The kinds alternate.

    greedy             temperature 0
    top-p              temperature 0.8, top_p 0.95
    everything         every parameter there is, a grammar's mask and 20 logprobs

Throughput: streams read by the engine's client in this process while all of them flow, none, half
or all of them with a JSON schema, alternating.
"""

import argparse
import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from statistics import median
from typing import Any, NamedTuple

import jax
import numpy as np
import orjson

from benchmarks.microbenchmarks.decoding import StreamRequest, run_requests
from benchmarks.serving.alternation import Measured, add_alternation_flags, alternate, finish
from benchmarks.serving.command import at_least_one, new_parser, run
from benchmarks.serving.engines import load_engine, model_path
from benchmarks.serving.table import Turn
from engine.engine import Engine
from engine.interface.types import FinishReason
from engine.schedule.request import Request
from engine.schedule.step_plan import StepPlan
from engine.step.grammar_masks import fill_masks
from sampling.host.params import SamplingParams
from sampling.host.rows import SamplerVariant
from sampling.sampler import SamplerBackend, sample
from sampling.state import Slots
from server.cli.bench.load.workload import Workload
from server.protocol.structured_outputs import Grammar, GrammarKind
from server.startup.settings import ServerSettings
from server.structured_output.grammar_compiler import GrammarCompiler
from server.text.text_model import TextModel

PROGRAM = "benchmarks.sampler"
Contender = Callable[[int], Measured]
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
            "logprobs": 20, "drawn_logprobs": True, "logprob_token_ids": tuple(range(100, 110)),
        },
    }  # fmt: skip


def prompts_of(load: Workload, engine: Engine) -> list[list[int]]:
    vocab_size = engine.model_info.vocab_size
    return [[token_id % vocab_size for token_id in prompt] for prompt in load.token_prompts()]


class StepTimes(NamedTuple):
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
    if step.level is SamplerVariant.FULL:
        runner.sample(pending, masks)
    else:  # the engine may have no program for it alone
        program = plain_sampling(runner.backends.sampler, all_greedy=step.level is SamplerVariant.GREEDY)
        runner.arrays.slots, pending.out = program(pending.logits, runner.arrays.slots, step.sampling)
    jax.block_until_ready(pending.out)
    sampled = time.perf_counter() - begin
    engine.scheduler.commit(plan, runner.result(pending))
    return StepTimes(forward, sampled)


@cache
def plain_sampling(backend: SamplerBackend, *, all_greedy: bool) -> Callable[..., tuple[Slots, jax.Array]]:
    """A program of sampling without features."""
    program: Callable[..., tuple[Slots, jax.Array]] = jax.jit(
        partial(sample, all_greedy=all_greedy, backend=backend), donate_argnums=1
    )
    return program


def shares_contenders(engine: Engine, rows: int, options: argparse.Namespace) -> dict[str, Contender]:
    """By kind: the medians of forward pass and sampling of a turn, and the share of the two that sampling has."""
    load = Workload(url="", model="", num_requests=rows, num_prompt_tokens=options.context, num_output_tokens=1)
    prompts = prompts_of(load, engine)

    def contender(kind: str, wishes: dict[str, Any]) -> Contender:
        params = SamplingParams(max_tokens=NUM_OUTPUT_TOKENS, ignore_eos=True, **wishes)

        def measured(seed: int) -> Measured:
            steps = time_turn(engine, prompts, params, grammar=kind == "everything")
            forward, sample = (1000 * median(column) for column in zip(*steps, strict=True))
            share = 100 * sample / (forward + sample)
            return Measured({"forward, ms": forward, "sample, ms": sample, "share of sampling, %": share})

        return measured

    return {kind: contender(kind, wishes) for kind, wishes in kinds(engine.model_info.vocab_size).items()}


def throughput_contenders(
    engine: Engine, text_model: TextModel, rows: int, options: argparse.Namespace
) -> dict[str, Contender]:
    """By how many of the streams have a schema: tokens per second."""
    compiler = GrammarCompiler(text_model.tokenizer, engine.model_info.vocab_size)
    grammar = compiler.compile_here(Grammar(GrammarKind.JSON_SCHEMA, orjson.dumps(SCHEMA).decode()), "schema")
    params = SamplingParams(max_tokens=options.output_len, temperature=0.8, top_p=0.95, ignore_eos=True)
    load = Workload(url="", model="", num_requests=rows, num_prompt_tokens=32, num_output_tokens=options.output_len)

    def contender(num_structured: int) -> Contender:
        def measured(seed: int) -> Measured:
            requests = [
                StreamRequest(
                    prompt,
                    dataclasses.replace(params, seed=index),
                    grammar.matcher() if index < num_structured else None,
                )
                for index, prompt in enumerate(prompts_of(dataclasses.replace(load, seed=seed), engine))
            ]
            return Measured({"tok/s": run_requests(engine, requests, overlap=True).tokens_per_s})

        return measured

    return {"none": contender(0), "half": contender((rows + 1) // 2), "all": contender(rows)}


def main(arguments: Sequence[str]) -> int:
    parser = new_parser(PROGRAM, __doc__)
    parser.add_argument("--model", help="a built-in model, or path of a model")
    parser.add_argument("--rows", type=at_least_one, nargs="+", default=[64])
    parser.add_argument("--context", type=at_least_one, default=200, help="tokens behind each row")
    parser.add_argument("--output-len", type=at_least_one, default=96, help="tokens of each stream")
    parser.add_argument("--num-pages", type=int, default=1500, help="cache pages of the engine")
    parser.add_argument("--skip", choices=["shares", "throughput"], help="leave one part out")
    add_alternation_flags(parser, rounds=5)
    options = parser.parse_args(arguments)
    flags = {"model": options.model, "num_pages": options.num_pages, "max_num_seqs": max(options.rows)}
    settings = ServerSettings.from_sources(flags, os.environ)
    text_model = TextModel.load(model_path(settings.model))
    engine = load_engine(settings.model, settings.engine_config())
    contenders, turns = list[str](), list[Turn]()
    for rows in options.rows:
        parts = {}
        if options.skip != "shares":
            parts[f"{rows} rows"] = shares_contenders(engine, rows, options)
        if options.skip != "throughput":
            parts[f"{rows} streams, with a schema"] = throughput_contenders(engine, text_model, rows, options)
        for load, part in parts.items():
            turns += alternate(load, part, range(options.rounds), max_others=options.max_others)
            contenders += [name for name in part if name not in contenders]
    ratios = [] if options.skip == "throughput" else [("half", "none"), ("all", "none")]
    return finish(turns, contenders, options, PROGRAM, arguments, ratios=ratios)


if __name__ == "__main__":
    run(PROGRAM, main)
