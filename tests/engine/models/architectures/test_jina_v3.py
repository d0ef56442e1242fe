"""Jina Embeddings 3 as Jina published it, with adapters for tasks beside its matrices, which are left out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter
from safetensors.numpy import save_file

from engine.interface.errors import ModelError
from engine.models.open_model import open_model
from tests.engine.models.test_encoders import GOLDENS, assert_same_weights, tensors_of, write_golden

TASKS = ["retrieval.query", "text-matching"]
RANK = 4


def write_published(folder: Path) -> Path:
    """The golden by other names, and with pairs beside each matrix."""
    folder.mkdir()
    golden = GOLDENS["jina_v3"]
    own = ("architectures", "model_type", "rope_parameters")
    config = {name: value for name, value in golden["config"].items() if name not in own} | {
        "architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta", "position_embedding_type": "rotary",
        "rotary_emb_base": 20000.0, "lora_adaptations": TASKS, "lora_alpha": 1, "lora_rank": RANK,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tensors = {}
    for name, values in tensors_of(golden).items():
        if values.ndim == 1:
            tensors[f"roberta.{name}"] = values
            continue
        matrix = f"roberta.{name.removesuffix('.weight')}.parametrizations.weight"
        tensors[f"{matrix}.original"] = values
        tensors[f"{matrix}.0.lora_A"] = np.ones((len(TASKS), RANK, values.shape[1]), np.float32)
        tensors[f"{matrix}.0.lora_B"] = np.ones((len(TASKS), values.shape[0], RANK), np.float32)
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_a_folder_as_jina_published_it_is_the_same_model(tmp_path: Path) -> None:
    (tmp_path / "usual").mkdir()
    write_golden(tmp_path / "usual", GOLDENS["jina_v3"])
    usual, published = open_model(tmp_path / "usual"), open_model(write_published(tmp_path / "published"))
    assert published.architecture == usual.architecture
    one, other = (vars(each.config) | {"prefix": "", "rotary": ()} for each in (usual, published))
    assert one == other
    for ours, theirs in zip(usual.config.rotary, published.config.rotary, strict=True):
        np.testing.assert_array_equal(ours.frequencies, theirs.frequencies)
    assert_same_weights(usual, published)


def test_another_base_of_its_rotation_counts(tmp_path: Path) -> None:
    folder = write_published(tmp_path / "published")
    before = open_model(folder).config.rotary[0].frequencies
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"rotary_emb_base": 10000.0}), encoding="utf-8")
    assert not np.array_equal(open_model(folder).config.rotary[0].frequencies, before)


def test_the_file_of_an_adapter_is_no_model(tmp_path: Path) -> None:
    """Its converter writes one for each task beside the model's."""
    writer = GGUFWriter(tmp_path / "lora.gguf", "jina-bert-v3")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_tensor("blk.0.ffn_up.weight.lora_a", np.ones((RANK, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match="is an adapter for a model of the architecture 'jina-bert-v3' and no model"):
        open_model(tmp_path / "lora.gguf")
