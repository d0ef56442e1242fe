"""Random workloads for an engine of a tiny model, and what each of their requests gives alone."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from safetensors.numpy import save_file

from engine.client import EngineClient
from engine.engine import Engine
from engine.interface.config import TILE_SIZE, EngineConfig
from sampling.host.params import SamplingParams
from tests.golden.architectures.tiny_weights import tiny_weights

GOLDENS = Path(__file__).parents[1] / "golden" / "architectures"
MAX_MODEL_LEN = 400
LENGTHS = (90, 150, 260)  # of the prompts from which others branch
MAX_BATCH = 8
_FEATURES: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.0, "repetition_penalty": 1.3, "dry_multiplier": 0.8},
    {"temperature": 0.9, "top_k": 40, "top_p": 0.95, "frequency_penalty": 0.4, "presence_penalty": 0.2},
    {"temperature": 1.2, "min_p": 0.02, "xtc_probability": 0.4, "logit_bias": ((7, 1.5), (9, -3.0)), "logprobs": 3},
]


def write_folder(path: Path, name: str) -> Path:
    """The folder of the tiny model of a golden."""
    golden = json.loads((GOLDENS / f"{name}.json").read_text(encoding="utf-8"))
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(golden["config"]), encoding="utf-8")
    weights = tiny_weights(golden["config"]["architectures"][0], golden["shapes"], golden["seed"])
    save_file(weights, path / "model.safetensors")
    return path


def load(folder: Path, **changes: Any) -> Engine:
    values = {
        "dtype": "float32", "max_num_seqs": 4, "max_num_batched_tokens": 3 * TILE_SIZE,
        "max_model_len": MAX_MODEL_LEN, **changes,
    }  # fmt: skip
    return Engine.load(folder, EngineConfig(**values), lambda stage, done, total: None)


def started(engine: Engine) -> EngineClient:
    client = EngineClient(engine)
    client.start(asyncio.get_running_loop())
    return client


def stop(client: EngineClient, engine: Engine) -> None:
    """Ends a client none of whose requests is left, and checks what its engine holds."""
    num_late = client.stats().compiles_after_ready
    client.shutdown()
    for pool in (engine.pool, engine.pool.snapshots):
        if pool is not None:
            pool.check()
            assert pool.num_active == 0
    assert num_late == 0


@dataclass(frozen=True)
class Job:
    prompt: tuple[int, ...]
    params: SamplingParams
    num_prompt_output_tokens: int = 0
    num_read: int | None = None  # tokens after which its reader leaves; None: it stays


@dataclass
class Output:
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prompt_logprobs: list[float] = field(default_factory=list)
    num_cached: int = 0


async def run(client: EngineClient, job: Job) -> Output:
    output = Output()
    stream = client.submit(list(job.prompt), job.params, num_prompt_output_tokens=job.num_prompt_output_tokens)
    async for event in stream:
        output.token_ids += event.token_ids
        output.logprobs += [entry.logprob for entry in event.logprobs or ()]
        output.prompt_logprobs += [entry.logprob for entry in event.prompt_logprobs or () if entry is not None]
        output.num_cached = event.num_cached_tokens
        if job.num_read is not None and len(output.token_ids) >= job.num_read:
            client.abort(stream.request_id)
            break
    return output


class Alone:
    """An engine that remembers nothing and runs one request after the other."""

    def __init__(self, folder: Path) -> None:
        self._engine = load(
            folder, max_num_seqs=1, max_num_batched_tokens=2 * TILE_SIZE, enable_prefix_caching=False, page_size=8,
            num_pages=200,
        )  # fmt: skip
        self._outputs: dict[Job, Output] = {}

    async def check(self, jobs: Sequence[Job], outputs: Sequence[Output]) -> None:
        """Every token and log probability is that of the run alone, as far as readers stayed."""
        client = started(self._engine)
        for job, output in zip(jobs, outputs, strict=True):
            expected = self._outputs.get(job)
            if expected is None:
                # With log probabilities a token is sampled by a program of its own, and not in a burst.
                params = replace(job.params, logprobs=job.params.logprobs or 0)
                expected = self._outputs[job] = await run(client, replace(job, params=params))
            length = len(output.token_ids)
            if job.num_read is None:
                assert length == len(expected.token_ids)
            else:  # how many more come before the reader leaves is a matter of chance
                length = min(length, len(expected.token_ids))
            assert output.token_ids[:length] == expected.token_ids[:length], job
            if job.params.logprobs is not None:
                assert output.logprobs[:length] == expected.logprobs[:length], job
            assert output.prompt_logprobs == expected.prompt_logprobs, job
        client.shutdown()


class Chance:
    """What comes by chance: batches of requests that branch from each other."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.page_size = self.random.choice([4, 8, 16])
        self._done: list[tuple[Job, Output]] = []  # those from which others branch

    def remember(self, jobs: Sequence[Job], outputs: Sequence[Output]) -> None:
        self._done = [*self._done, *zip(jobs, outputs, strict=True)][-12:]

    def jobs(self) -> list[Job]:
        """New prompts, branches at any page or token, continued conversations and answers, several of one prompt."""
        chance = self.random
        jobs: list[Job] = []
        for _ in range(chance.randint(1, MAX_BATCH)):
            kind = chance.random()
            if self._done and kind < 0.15:
                jobs.append(self._continued_answer())
                continue
            job = self._branch()
            num_answers = chance.choice([1, 1, 1, 2, 3])
            jobs += [
                Job(job.prompt, job.params.with_seed(chance.randrange(99)), num_read=job.num_read)
                for _ in range(num_answers)
            ]
        return jobs

    def jobs_at_every_page(self) -> list[Job]:
        """A prompt that was computed before, up to each boundary of its pages, and another token."""
        job, output = self.random.choice(self._done)
        stem = (*job.prompt, *output.token_ids)
        params = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True, logprobs=0)
        return [
            Job((*stem[: cut + self.random.choice([-1, 0, 0, 1])], self.random.randrange(3, 250)), params)
            for cut in range(self.page_size, len(stem), self.page_size)
        ]

    def _branch(self) -> Job:
        chance, size = self.random, self.page_size
        stem: tuple[int, ...] = ()
        if self._done:
            job, output = chance.choice(self._done)
            stem = (*job.prompt, *output.token_ids)
        cut = chance.choice([len(stem), chance.randrange(len(stem) + 1) // size * size, len(stem) // 2])
        length = chance.choice(LENGTHS) if not cut or chance.random() < 0.2 else chance.randint(1, 40)
        prompt = (*stem[:cut][: 300 - length], *(chance.randrange(3, 250) for _ in range(length)))
        options = {"logprobs": chance.choice([0, None]), **chance.choice(_FEATURES)}
        if chance.random() < 0.1:
            options["prompt_logprobs"] = 0
        params = SamplingParams(
            max_tokens=chance.choice([1, 5, 30, 60]), seed=chance.randrange(99), ignore_eos=True, **options
        )
        return Job(prompt, params, num_read=chance.choice([None, None, None, 3]))

    def _continued_answer(self) -> Job:
        """An answer of before from its middle on."""
        job, output = self.random.choice(self._done)
        num_kept = self.random.randrange(len(output.token_ids))
        prompt = (*job.prompt, *output.token_ids[:num_kept])
        return Job(prompt, job.params, num_prompt_output_tokens=job.num_prompt_output_tokens + num_kept)
