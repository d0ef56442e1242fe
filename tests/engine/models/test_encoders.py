"""Every encoder against transformers, on the tiny models of tests/golden/encoders, through the whole engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import MODEL_ARCH, GGUFWriter
from safetensors.numpy import save_file

from engine.backends.base.backend import Backend
from engine.client import EngineClient
from engine.interface.config import EngineConfig
from engine.interface.context_overflow import ContextOverflow
from engine.interface.errors import ModelError
from engine.interface.types import Pooling
from engine.models.open_model import open_model
from engine.models.registry import ARCHITECTURES
from sampling.host.params import InvalidParameter, SamplingParams
from tests.golden.architectures.tiny_weights import tiny_weights

FOLDER = Path(__file__).parents[2] / "golden" / "encoders"
GOLDENS: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))
}
every_golden = pytest.mark.parametrize("name", GOLDENS)
FIELD = {Pooling.CLS: "cls", Pooling.LAST: "last", Pooling.MEAN: "mean"}


def tensors_of(golden: dict[str, Any]) -> dict[str, np.ndarray]:
    return tiny_weights(golden["config"]["architectures"][0], golden["shapes"], golden["seed"])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each golden, of its name."""
    root = tmp_path_factory.mktemp("encoders")
    for name, golden in GOLDENS.items():
        (root / name).mkdir()
        (root / name / "config.json").write_text(json.dumps(golden["config"]), encoding="utf-8")
        save_file(tensors_of(golden), root / name / "model.safetensors")
    return root


@asynccontextmanager
async def engine_of(path: Path, backend: str, **changes: Any) -> AsyncIterator[EngineClient]:
    config = EngineConfig(dtype="float32", matmul_backend=backend, attention_backend=backend, **changes)
    client = await asyncio.to_thread(EngineClient.load, path, config, lambda stage, done, total: None)
    client.start(asyncio.get_running_loop())
    try:
        yield client
    finally:
        client.shutdown()


async def embed_all(client: EngineClient, texts: Sequence[Any], pooling: Pooling) -> list[np.ndarray]:
    return await asyncio.gather(
        *(client.embed(text["token_ids"], pooling, second_start=text["second_start"]) for text in texts)
    )


def test_every_encoder_has_a_golden() -> None:
    with_golden = {golden["config"]["architectures"][0].replace("XLM", "") for golden in GOLDENS.values()}
    encoders = {each.transformers_name.replace("XLM", "") for each in ARCHITECTURES if each.model.is_encoder}
    assert with_golden == encoders


@every_golden
async def test_texts_are_pooled_as_transformers_does(folders: Path, backend: Backend, name: str) -> None:
    """All at once, so that steps have several texts; and each alone, which gives the same bits."""
    texts = GOLDENS[name]["texts"]
    has_scores = "scores" in texts[0]
    async with engine_of(folders / name, backend.name, max_num_batched_tokens=128) as client:
        assert client.model_info.is_encoder
        assert client.model_info.num_labels == (len(texts[0]["scores"]) if has_scores else 0)
        for pooling in [Pooling.CLS] if has_scores else list(Pooling):
            got = await embed_all(client, texts, pooling)
            field = "scores" if has_scores else FIELD[pooling]
            for text, vector in zip(texts, got, strict=True):
                np.testing.assert_allclose(vector, text[field], rtol=0, atol=2e-5)
            for text, vector in zip(texts, got, strict=True):
                (alone,) = await embed_all(client, [text], pooling)
                assert np.array_equal(alone, vector)
        assert client.stats().compiles_after_ready == 0
        assert client.stats().num_active_pages == 0


async def test_what_an_encoder_refuses(folders: Path) -> None:
    async with engine_of(folders / "bert", "native", max_model_len=100) as client:
        with pytest.raises(InvalidParameter, match="an encoder, which generates no text"):
            client.submit([1, 2, 3], SamplingParams(max_tokens=1))
        with pytest.raises(ContextOverflow, match="101 tokens"):
            await client.embed([1] * 101, Pooling.MEAN)
        with pytest.raises(InvalidParameter, match="2 or more"):
            await client.embed([1], Pooling.MEAN)
        with pytest.raises(InvalidParameter, match="token id 64"):
            await client.embed([1, 64], Pooling.MEAN)
        assert (await client.embed([1] * 100, Pooling.MEAN)).shape == (64,)


async def test_an_encoder_sleeps_and_wakes(folders: Path) -> None:
    async with engine_of(folders / "bert", "native") as client:
        before = await client.embed([2, 3, 4], Pooling.MEAN)
        await client.lifecycle.sleep(forget_weights=True)
        waiting = asyncio.ensure_future(client.embed([2, 3, 4], Pooling.MEAN))
        await client.lifecycle.wake()
        assert np.array_equal(await waiting, before)


@pytest.mark.parametrize(
    "setting", [{"tensor_parallel": 2}, {"prefix_cache_dir": "/nowhere"}], ids=lambda setting: next(iter(setting))
)
def test_settings_that_an_encoder_cannot_have(folders: Path, setting: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(setting))} is .*, which an encoder cannot have"):
        EngineClient.load(folders / "bert", EngineConfig(**setting), lambda stage, done, total: None)


@pytest.mark.parametrize("name", ["bert", "xlm_roberta_classifier"])
async def test_a_gguf_file_is_the_same_model(folders: Path, tmp_path: Path, name: str) -> None:
    """With the names of the gguf package; the converter drops the rows of positions that no token has."""
    golden = GOLDENS[name]
    path = write_gguf(tmp_path / "model.gguf", golden)
    texts = golden["texts"]
    async with engine_of(path, "native") as client:
        got = await embed_all(client, texts, Pooling.CLS)
    for text, vector in zip(texts, got, strict=True):
        np.testing.assert_allclose(vector, text.get("scores", text.get("cls")), rtol=0, atol=2e-5)


def write_gguf(path: Path, golden: dict[str, Any]) -> Path:
    config = golden["config"]
    writer = GGUFWriter(path, "bert")
    first = config["pad_token_id"] + 1 if "roberta" in config["model_type"] else 0
    writer.add_context_length(config["max_position_embeddings"] - first)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    names = gguf.get_tensor_name_map(MODEL_ARCH.BERT, config["num_hidden_layers"])
    for name, values in tensors_of(golden).items():
        short = name.removeprefix("roberta.")
        if short.startswith("pooler."):
            continue
        stored = names.get_name(short, try_suffixes=(".weight", ".bias"))
        assert stored is not None, name
        writer.add_tensor(stored, np.ascontiguousarray(values[first:] if "position_emb" in name else values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"is_decoder": True}, "is_decoder"),
        ({"num_attention_heads": 3}, "num_attention_heads"),
        ({"max_position_embeddings": 149}, "position_embeddings"),
    ],
)
def test_what_is_not_served_is_refused_by_its_field(
    folders: Path, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    golden = GOLDENS["bert"]
    (tmp_path / "config.json").write_text(json.dumps(golden["config"] | change), encoding="utf-8")
    save_file(tensors_of(golden), tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=words):
        open_model(tmp_path)
