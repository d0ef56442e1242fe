"""Which models of Baichuan have scores that fall with distance, and which have rows of length 1 that make logits."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from engine.models.architectures.llamas.baichuan import Baichuan
from engine.models.open_model import open_model
from engine.models.parts.alibi import distance_slopes
from engine.weights.formats.model_folder import JsonFile
from tests.engine.models.twins.gguf_twins import write_gguf
from tests.golden.architectures.tiny_weights import tiny_weights

GOLDEN = Path(__file__).parents[3] / "golden" / "architectures" / "baichuan_alibi.json"
SIZES = {
    "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip


@pytest.mark.parametrize(("num_layers", "has_alibi"), [(32, False), (40, True)])
def test_files_mean_alibi_by_forty_layers(tmp_path: Path, num_layers: int, has_alibi: bool) -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    tensors = tiny_weights("BaichuanForCausalLM", golden["shapes"], golden["seed"])
    for name in [name for name in tensors if ".layers.0." in name]:
        tensors |= {re.sub(r"\.0\.", f".{layer}.", name, count=1): tensors[name] for layer in range(num_layers)}
    config = {**golden["config"], "num_hidden_layers": num_layers}
    read = open_model(write_gguf(tmp_path / "tiny.gguf", config, tensors)).model.config
    assert read.has_distance_biases == has_alibi


def test_folders_mean_it_by_the_name_of_the_context() -> None:
    config, of_7b = (
        Baichuan.from_folder(JsonFile(Path("config.json"), {**SIZES, name: 512}), frozenset()).config
        for name in ("model_max_length", "max_position_embeddings")
    )
    assert (config.distance_slopes, of_7b.distance_slopes) == (distance_slopes(4), ())
    assert (config.context_length, of_7b.context_length) == (512, 512)


def test_the_output_matrix_of_the_second_has_rows_of_length_one() -> None:
    values = {**SIZES, "model_max_length": 512, "vocab_size": 125696}
    model = Baichuan.from_folder(JsonFile(Path("config.json"), values), frozenset())
    (output,) = (leaf for leaf in model.leaves() if leaf.name == "output")
    for stored in output.parts[0].stored.values():
        assert stored.transform is not None
        rows = stored.transform(SimpleNamespace(float32=lambda: np.array([[3, 4], [0, 0]], np.float32)))  # type: ignore[arg-type]
        np.testing.assert_allclose(rows.float32(), [[0.6, 0.8], [0, 0]], rtol=1e-6)
