"""Encoders of texts and of pictures: what transformers makes of the tiny models."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from engine.client import EngineClient
from tests.engine import test_pictures as pictures
from tests.engine.models.test_encoders import DECODER, FIELD, GOLDENS, embed_all, engine_of, write_golden

THAT_SEE = [
    "gemma3", "smolvlm", "qwen2_5_vl", "gemma4", "gemma4_both", "qwen3_vl", "qwen3_5", "qwen3_vl_moe", "qwen3_5_moe",
    "mistral3", "internvl", "lfm2_vl", "llama4",
]  # fmt: skip


@pytest.mark.parametrize("name", [name for name in GOLDENS if name != DECODER])
async def test_texts(tmp_path: Path, name: str) -> None:
    """All at once, so that steps have several texts; and each alone."""
    write_golden(tmp_path, GOLDENS[name])
    texts = GOLDENS[name]["texts"]
    has_scores = "scores" in texts[0]
    async with engine_of(tmp_path, "xla", max_num_seqs=4, max_num_batched_tokens=64) as client:
        for pooling in [client.model_info.head_pooling] if has_scores else list(FIELD):
            expected = [text["scores" if has_scores else FIELD[pooling]] for text in texts]
            together = await embed_all(client, texts, pooling)
            alone = [(await embed_all(client, [text], pooling))[0] for text in texts]
            for got in (together, alone):
                for vector, golden in zip(got, expected, strict=True):
                    np.testing.assert_allclose(vector, golden, rtol=0, atol=2e-5)
        assert client.stats().compiles_after_ready == 0


@pytest.mark.parametrize("name", THAT_SEE)
async def test_pictures(tmp_path: Path, name: str) -> None:
    golden = pictures.Golden(name)
    client = EngineClient(pictures.load(golden.write(tmp_path), "xla", max_num_seqs=2))
    client.start(asyncio.get_running_loop())
    try:
        await pictures.tokens_are_those_of_transformers(client, golden)
        if (pictures.FOLDER / f"{name}_videos.json").exists():
            await pictures.videos_are_those_of_transformers(client, golden, name)
        assert client.stats().compiles_after_ready == 0
    finally:
        client.shutdown()
