"""A model folder served end to end: the reference's tokens, streams, chat, and what a start says of a bad folder."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine.client import EngineClient
from engine.engine import Engine
from engine.interface.config import EngineConfig
from engine.interface.types import TokenEvent
from sampling.host.params import SamplingParams
from server.startup.model_loader import plan_with
from server.startup.progress import silent
from server.text.text_model import TextModel
from tests.golden.tiny_llama import CONFIG, weights
from tests.model_folders import BOS, END_OF_TURN, EOS, write_folder, write_gguf_twin, write_json
from tests.server.support.sse_reader import chunks_of
from tests.server.test_real_server import RealServer, serving

GOLDENS = json.loads((Path(__file__).parents[1] / "golden" / "tiny_llama.json").read_text(encoding="utf-8"))["prompts"]
MESSAGES = [{"role": "user", "content": "hello wörld"}]
END = GOLDENS[2]["output_token_ids"][3]  # declared to be an end token
CONFIGURATION = EngineConfig(dtype="float32", max_num_seqs=2, max_num_batched_tokens=66, num_pages=64, seed=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "Tiny-0.1B"
    write_folder(path, num_shards=2)
    write_json(path / "generation_config.json", {"eos_token_id": [EOS, END]})
    return path


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine:
    end_tokens = TextModel.load(folder).tokenizer.eos_token_ids
    return Engine.load(folder, dataclasses.replace(CONFIGURATION, eos_token_ids=end_tokens), silent)


@pytest.fixture
async def client(engine: Engine) -> AsyncIterator[EngineClient]:
    client = EngineClient(engine)
    client.start(asyncio.get_running_loop())
    yield client
    client.shutdown()
    engine.pool.check()
    assert engine.pool.num_active == 0


@pytest.fixture
async def server(client: EngineClient, folder: Path) -> AsyncIterator[RealServer]:
    async with serving(client, TextModel.load(folder)) as server:
        yield server
        await server.wait_idle()


async def outputs(client: EngineClient) -> list[list[int]]:
    """Of the golden prompts, all at once."""
    params = SamplingParams(max_tokens=32, temperature=0.0, ignore_eos=True)

    async def one(prompt: list[int]) -> list[int]:
        events: list[TokenEvent] = [event async for event in client.submit(prompt, params)]
        return [token_id for event in events for token_id in event.token_ids]

    return list(await asyncio.gather(*(one(golden["prompt_token_ids"]) for golden in GOLDENS)))


async def test_tokens_equal_the_reference(client: EngineClient) -> None:
    assert min(min(golden["logit_gaps"]) for golden in GOLDENS) > 1e-4  # no near-tie, so that all can be compared
    assert await outputs(client) == [golden["output_token_ids"] for golden in GOLDENS]


async def test_weights_come_from_either_kind_of_file(client: EngineClient, folder: Path, tmp_path: Path) -> None:
    other = weights(CONFIG)
    other["model.norm.weight"] = -other["model.norm.weight"]
    await client.lifecycle.update_weights(write_folder(tmp_path / "other", tensors=other, stored_as="F32"))
    assert await outputs(client) != [golden["output_token_ids"] for golden in GOLDENS]
    await client.lifecycle.update_weights(write_gguf_twin(tmp_path / "twin.gguf"))
    assert await outputs(client) == [golden["output_token_ids"] for golden in GOLDENS]


async def test_a_completion_streams_what_the_json_says(server: RealServer, folder: Path) -> None:
    body = {"prompt": "hello w", "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    status, whole = await server.post("/v1/completions", body)
    assert status == 200, whole
    assert whole["model"] == "Tiny-0.1B"
    assert (whole["usage"]["prompt_tokens"], whole["usage"]["completion_tokens"]) == (3, 24)
    text = whole["choices"][0]["text"]
    chunks = chunks_of(await server.stream_bytes("/v1/completions", body))
    assert "".join(choice["text"] for chunk in chunks for choice in chunk["choices"]) == text
    tokenizer = TextModel.load(folder).tokenizer
    token_ids = tokenizer.encode("hello w", add_special_tokens=True)
    assert token_ids[0] == BOS
    status, by_ids = await server.post("/v1/completions", body | {"prompt": token_ids})
    assert (status, by_ids["choices"][0]["text"]) == (200, text)


async def test_chat_goes_through_the_template(server: RealServer, folder: Path) -> None:
    parameters = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
    status, chat = await server.post("/v1/chat/completions", {"messages": MESSAGES, **parameters})
    assert status == 200, chat
    tokenizer = TextModel.load(folder).tokenizer
    rendered = "<s><|im_start|>user\nhello wörld<|im_end|>\n<|im_start|>assistant\n"
    token_ids = tokenizer.encode(rendered, add_special_tokens=False)
    assert token_ids[:2] == [BOS, 2]
    assert token_ids.count(END_OF_TURN) == 1
    assert chat["usage"]["prompt_tokens"] == len(token_ids)
    status, completion = await server.post("/v1/completions", {"prompt": token_ids, **parameters})
    assert chat["choices"][0]["message"]["content"] == completion["choices"][0]["text"]


async def test_an_end_token_of_the_folder_ends_an_output(server: RealServer) -> None:
    body = {"prompt": GOLDENS[2]["prompt_token_ids"], "max_tokens": 32, "temperature": 0}
    status, answer = await server.post("/v1/completions", body)
    assert status == 200, answer
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == GOLDENS[2]["output_token_ids"].index(END) + 1


def test_a_folder_is_named_after_itself(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert TextModel.load(folder).name == "Tiny-0.1B"
    monkeypatch.chdir(folder)
    assert TextModel.load(Path()).name == "Tiny-0.1B"
    assert (TextModel.load(folder, "mine").name, TextModel.load(folder).context_length) == ("mine", 256)


def test_a_folder_without_a_template_is_not_made_for_chat(tmp_path: Path) -> None:
    assert TextModel.load(write_folder(tmp_path, tokenizer_config={})).chat_template is None


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            {"architectures": ["OpenAIGPTLMHeadModel"], "max_position_embeddings": None},
            "architectures is .*OpenAIGPTLMHeadModel",
        ),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_type.*longrope"),
        ({"quantization_config": {"quant_method": "hqq"}}, 'quant_method is "hqq"'),
    ],
)
def test_a_start_says_what_is_wrong(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    write_json(write_folder(tmp_path) / "config.json", CONFIG | config)
    with pytest.raises((ValueError, RuntimeError), match=words):
        plan_with(str(tmp_path), lambda end_tokens: CONFIGURATION, silent)
