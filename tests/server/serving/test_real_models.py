"""Several real models in one server: each answers as it would alone, whatever the others do."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import shutil
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import structlog

from engine.interface.config import EngineConfig
from engine.interface.types import Progress
from engine.weights.formats.file_array import ModelFile
from server.cli.listeners import start_sites
from server.cli.model_loader import ModelLoader
from server.http.app import build_app, make_runner, read_keys
from server.serving.served_models import ServedModels
from server.startup.model_loader import ModelPlan, plan_with
from server.startup.model_settings import settings_of_each
from server.startup.model_sizes import machine_memory
from server.startup.progress import silent
from server.startup.settings import ServerSettings
from tests.golden.tiny_llama import CONFIG, weights
from tests.model_folders import write_folder, write_gguf_twin
from tests.server.conftest import eventually
from tests.server.serving.conftest import FakeLoader, SeveralServer
from tests.server.support.gguf_files import whole_vocabulary

GOLDENS = json.loads((Path(__file__).parents[2] / "golden" / "tiny_llama.json").read_text(encoding="utf-8"))["prompts"]
NUM_CLIENTS = 16


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """`tide` has the weights of the goldens, `ebb` others, and `again` is a copy of `tide`."""
    path = tmp_path_factory.mktemp("models")
    other = weights(CONFIG)
    other["model.norm.weight"] = -other["model.norm.weight"]
    return {
        "tide": write_folder(path / "tide"),
        "ebb": write_folder(path / "ebb", tensors=other),
        "again": write_folder(path / "again"),
    }


@pytest.fixture
async def server(folders: dict[str, Path]) -> AsyncIterator[SeveralServer]:
    async with serving(folders.values(), models_max=2) as server:
        yield server


@asynccontextmanager
async def serving(models: Iterable[Path], *, models_max: int) -> AsyncIterator[SeveralServer]:
    first, *_ = models = list(models)
    engine = EngineConfig(
        dtype="float32", max_num_seqs=2, max_num_batched_tokens=66, num_pages=64, seed=0,
        compilation_cache=str(first.with_name("programs")),
    )  # fmt: skip

    def plan(settings: ServerSettings, progress: Progress) -> ModelPlan:
        return plan_with(
            settings.model, lambda end_ids: dataclasses.replace(settings.engine, eos_token_ids=end_ids), progress
        )

    settings = ServerSettings(port=0, models=tuple(map(str, models)), models_max=models_max, engine=engine)
    served = ServedModels(settings, settings_of_each(settings))
    loader = ModelLoader(served, plan, silent)
    runner = make_runner(build_app(served, read_keys(settings)))
    await runner.setup()
    await start_sites(runner, ["127.0.0.1"], 0)
    served.start(loader, machine_memory)
    assert await loader.load_first()
    async with aiohttp.ClientSession() as http:
        yield SeveralServer(f"http://127.0.0.1:{runner.addresses[0][1]}", http, served, {}, FakeLoader({}, None))
    await runner.cleanup()
    for model in served.all:
        if model.is_open:
            assert model.engine.stats().compiles_after_ready == 0
            assert model.engine.stats().num_active_pages == 0
            model.engine.shutdown()


async def ask(server: SeveralServer, model: str, number: int) -> list[int]:
    """The token ids of the answer to one of the goldens' prompts."""
    prompt = GOLDENS[number % len(GOLDENS)]["prompt_token_ids"]
    body: dict[str, Any] = {"max_tokens": 32, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    status, answer = await server.complete(model, prompt, **body)
    assert (status, answer.get("model")) == (200, model), answer
    token_ids: list[int] = answer["choices"][0]["token_ids"]
    return token_ids


async def test_each_answer_equals_the_one_of_a_model_alone(server: SeveralServer) -> None:
    numbers = range(len(GOLDENS))
    golden = [prompt["output_token_ids"] for prompt in GOLDENS]
    # While the second model is being loaded, and its programs are compiled, the first one answers.
    assert [await ask(server, "tide", number) for number in numbers] == golden
    await eventually(lambda: server.in_memory == ["tide", "ebb"], 120)
    ebb = [await ask(server, "ebb", number) for number in numbers]
    assert all(mine != theirs for mine, theirs in zip(ebb, golden, strict=True))
    expected = {"tide": golden, "ebb": ebb, "again": golden}
    # Both at once, and a third that needs the place of one of them: what runs ends, what waits is answered later.
    calls = [(model, number) for number in range(NUM_CLIENTS) for model in ("tide", "ebb")]
    asking = [asyncio.create_task(ask(server, *call)) for call in calls]
    await asyncio.sleep(0.05)
    late = [("again", 0), ("tide", 1), ("ebb", 2)]
    asking += [asyncio.create_task(ask(server, *call)) for call in late]
    async with asyncio.timeout(120):
        answers = await asyncio.gather(*asking)
    for (model, number), answer in zip(calls + late, answers, strict=True):
        assert answer == expected[model][number % len(GOLDENS)], (model, number)
    assert len(server.in_memory) <= 2


@pytest.mark.parametrize("form", ["gguf", "safetensors"])
async def test_a_file_that_is_cut_while_it_is_read_fails_its_own_model_alone(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """While it is loaded, and while it is woken: the other model answers, and a whole file serves again."""
    if form == "gguf":
        model = file = write_gguf_twin(tmp_path / "cut.gguf", whole_vocabulary("gpt2", CONFIG["vocab_size"]))
    else:
        model = write_folder(tmp_path / "cut")
        file = model / "model.safetensors"
    whole, num_reads_left = tmp_path / "whole", 3
    shutil.copyfile(file, whole)
    read = ModelFile.read

    def cutting(opened: ModelFile, start: int, stop: int) -> np.ndarray:
        nonlocal num_reads_left
        if opened.path == file:
            num_reads_left -= 1
            if num_reads_left == 0:
                os.truncate(file, file.stat().st_size // 2)
        return read(opened, start, stop)

    monkeypatch.setattr(ModelFile, "read", cutting)
    body: dict[str, Any] = {"max_tokens": 8, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    prompt = GOLDENS[0]["prompt_token_ids"]
    async with serving([folders["tide"], model], models_max=1) as server:
        tide = await ask(server, "tide", 0)
        for _ in range(2):  # at the second time the model is asleep, without its weights
            num_reads_left = 3
            status, answer = await server.complete("cut", prompt, **body)
            assert status == 503, answer
            assert file.name in answer["error"]["message"]
            assert await ask(server, "tide", 0) == tide
            num_reads_left = -1
            shutil.copyfile(whole, file)
            status, answer = await server.complete("cut", prompt, **body)
            assert (status, len(answer["choices"][0]["token_ids"])) == (200, 8)
            assert await ask(server, "tide", 0) == tide


def cut(path: Path) -> Path:
    """A GGUF file of which the last tensor is not there to its end."""
    whole = write_gguf_twin(path, whole_vocabulary("gpt2", CONFIG["vocab_size"]))
    os.truncate(whole, whole.stat().st_size - 1000)
    return whole


def half(path: Path) -> Path:
    """A folder in two shards, of which one is missing."""
    tensors = weights(CONFIG)
    write_folder(path, tensors=tensors)
    (path / "model.safetensors").rename(path / "model-00001-of-00002.safetensors")
    places = {name: f"model-0000{1 + index % 2}-of-00002.safetensors" for index, name in enumerate(tensors)}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return path


def lacking(path: Path) -> Path:
    """A folder in which one tensor is missing."""
    tensors = weights(CONFIG)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    return write_folder(path, tensors=tensors)


def alien(path: Path) -> Path:
    """A folder of an architecture that is not served."""
    return changed(path, "config.json", architectures=["OpenAIGPTLMHeadModel"])


def changed(path: Path, name: str, **values: Any) -> Path:
    write_folder(path)
    content = json.loads((path / name).read_text(encoding="utf-8"))
    (path / name).write_text(json.dumps(content | values))
    return path


async def test_a_model_runs_on_beside_those_that_turn_out_not_to_load(folders: dict[str, Path], tmp_path: Path) -> None:
    refused = {
        "cut": (cut(tmp_path / "cut.gguf"), "cut short"),
        "half": (half(tmp_path / "half"), "model-00002-of-00002.safetensors"),
        "lacking": (lacking(tmp_path / "lacking"), "lacks the tensor 'model.layers.1.mlp.up_proj.weight'"),
        "alien": (alien(tmp_path / "alien"), "OpenAIGPTLMHeadModel"),
        "spoken": (write_folder(tmp_path / "spoken"), "tokenizer.json"),
        "worded": (write_folder(tmp_path / "worded"), "template"),
    }
    (tmp_path / "spoken" / "tokenizer.json").write_text("{")
    (tmp_path / "worded" / "chat_template.jinja").write_text("{% if")
    models = [folders["tide"], *(path for path, _ in refused.values())]
    async with serving(models, models_max=1) as server:
        tide = await ask(server, "tide", 0)
        with structlog.testing.capture_logs() as logged:
            for name, (_, words) in refused.items():
                running = asyncio.create_task(ask(server, "tide", 0))
                status, answer = await server.complete(name, [1, 2, 3])
                assert (status, answer["error"]["code"]) == (503, "model_not_loaded"), answer
                assert words in answer["error"]["message"]
                assert await running == tide
                assert server.in_memory == ["tide"]
        assert "model_asleep" not in {event["event"] for event in logged}
        assert server.served.find("tide").engine.stats().num_steps > 0
