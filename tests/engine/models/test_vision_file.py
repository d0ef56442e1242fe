"""Encoders of pictures in GGUF files of their own, against the same models in folders."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from engine.backends.xla.matrices import ArrayLayout
from engine.interface.errors import ModelError
from engine.models.architectures.seeing.gemma4 import SeeingGemma4
from engine.models.encoders.vision_encoder import Colours
from engine.models.open_model import OpenModel, open_model
from engine.models.vision_file import find_vision_file
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.layout import Params, Precision
from tests.golden.pictures.mmproj_twins import write_mmproj, write_text
from tests.golden.pictures.tiny_folder import write_tiny_folder

GOLDEN = Path(__file__).parents[2] / "golden" / "pictures"
FAMILIES = (
    "gemma3", "gemma4", "internvl", "lfm2_vl", "llama4", "llava_next", "mistral3", "qwen2_5_vl", "qwen3_5", "qwen3_vl",
    "qwen3_vl_moe", "smolvlm",
)  # fmt: skip


def golden(name: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    return values


def loaded(model: OpenModel) -> Params:
    return model.load(ArrayLayout(), Precision("float32", None), lambda *step: None).params


@pytest.mark.parametrize("name", FAMILIES)
def test_the_same_model_as_in_a_folder(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    text = write_text(tmp_path / "tiny.gguf", name, golden(name))
    mmproj = write_mmproj(tmp_path / "mmproj-tiny.gguf", name, golden(name))
    one, other = open_model(write_tiny_folder(folder, golden(name))), open_model(text)
    assert other.mmproj == mmproj
    assert one.model.encoder is not None
    assert other.model.encoder is not None
    assert type(one.model) is type(other.model)
    for size in ("height", "width", "num_tokens", "num_layers", "num_deep", "uses_mrope"):
        assert getattr(one.model.encoder, size) == getattr(other.model.encoder, size)
    expected, found = loaded(one), loaded(other)
    assert expected.keys() == found.keys()
    for leaf, values in expected.items():
        if leaf.startswith("delta_"):  # whose heads GGUF files have in another order, which another test compares
            continue
        np.testing.assert_array_equal(np.asarray(values), np.asarray(found[leaf]), err_msg=leaf)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0"])
def test_smaller_types_of_numbers(kind: str, tmp_path: Path) -> None:
    text = write_text(tmp_path / "tiny.gguf", "gemma3", golden("gemma3"))
    exact = write_mmproj(tmp_path / "exact.gguf", "gemma3", golden("gemma3"))
    small = write_mmproj(tmp_path / "small.gguf", "gemma3", golden("gemma3"), GGMLQuantizationType[kind])
    expected, found = (loaded(open_model(text, mmproj=path)) for path in (exact, small))
    name = "vision.projection"
    np.testing.assert_allclose(np.asarray(found[name]), np.asarray(expected[name]), atol=0.004)


def test_a_file_beside_the_model_is_taken_where_it_fits(tmp_path: Path) -> None:
    text = write_text(tmp_path / "tiny.gguf", "gemma3", golden("gemma3"))
    assert open_model(text).model.encoder is None
    write_mmproj(tmp_path / "mmproj-a.gguf", "qwen3_vl", golden("qwen3_vl"))
    assert open_model(text).model.encoder is None
    fitting = write_mmproj(tmp_path / "mmproj-b.gguf", "gemma3", golden("gemma3"))
    assert open_model(text).mmproj == fitting
    assert open_model(text, language_model_only=True).model.encoder is None
    named = write_mmproj(tmp_path / "mmproj-tiny-f16.gguf", "gemma3", golden("gemma3"))
    assert open_model(text).mmproj == named


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("qwen3_vl", {}, "for text models of the architecture qwen3vl"),
        ("gemma3", {"vision.projection_dim": 128}, "a picture's embeddings have 128 features, those of its tokens 64"),
        ("gemma3", {"projector_type": "ultravox"}, "'ultravox', which is not served"),
        ("gemma3", {"has_vision_encoder": False}, "is an encoder of sound"),
        ("gemma3", {"vision.image_mean": [0.4, 0.5]}, "vision.image_mean"),
        ("gemma3", {"vision.block_count": 60_000}, "too few for 60000 layers"),
        ("gemma3", {"vision.block_count": 3}, "has no tensor 'v.blk.2.ln1.weight'"),
        ("gemma3", {"vision.block_count": 1}, "has what the encoder gemma3 does not"),
        ("gemma3", {"vision.patch_size": 4_000_000_000}, "clip.vision.patch_size"),
        ("gemma3", {"vision.patch_size": 65_536}, "scale_factor"),
        ("gemma3", {"vision.feed_forward_length": 47}, "has shape"),
        ("gemma3", {"vision.attention.head_count": None}, "no field 'clip.vision.attention.head_count'"),
    ],
)
def test_refused(name: str, changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    text = write_text(tmp_path / "tiny.gguf", "gemma3", golden("gemma3"))
    mmproj = write_mmproj(tmp_path / "encoder.gguf", name, golden(name), **changes)
    with pytest.raises(ModelError, match=reason):
        open_model(text, mmproj=mmproj)


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("internvl", {"use_gelu": None}, "use_gelu"),
        ("internvl", {"vision.projector.scale_factor": 3}, "downsample_ratio"),
        ("lfm2_vl", {"use_silu": True}, "use_silu"),
        ("lfm2_vl", {"vision.projector.scale_factor": None}, "vision.projector.scale_factor"),
        ("mistral3", {"vision.spatial_merge_size": 1}, "has shape"),
        ("llava_next", {"vision.image_grid_pinpoints": None}, "LLaVA 1.6"),
        ("llava_next", {"vision.image_grid_pinpoints": [12, 24, 12]}, "LLaVA 1.6"),
        ("llava_next", {"vision.mm_patch_merge_type": "flat"}, "spatial_unpad"),
        ("llava_next", {"vision.feature_layer": [9]}, "vision_feature_layer"),
        ("gemma4", {"vision.attention.head_count": 4}, "has shape"),
        ("gemma4", {"vision.image_std": [0.0, 0.5, 0.5]}, "vision.image_std"),
    ],
)
def test_refused_of_other_families(name: str, changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    text = write_text(tmp_path / "tiny.gguf", name, golden(name))
    mmproj = write_mmproj(tmp_path / "encoder.gguf", name, golden(name), **changes)
    with pytest.raises(ModelError, match=reason):
        open_model(text, mmproj=mmproj)


def test_norms_of_llama_4_by_either_name(tmp_path: Path) -> None:
    """The table of the gguf package has two names for them, and published files the other one."""
    text = write_text(tmp_path / "tiny.gguf", "llama4", golden("llama4"))
    expected = loaded(open_model(text, mmproj=write_mmproj(tmp_path / "one.gguf", "llama4", golden("llama4"))))
    other = write_mmproj(tmp_path / "other.gguf", "llama4", golden("llama4"), renamed=("attn_post_norm", "ln2"))
    found = loaded(open_model(text, mmproj=other))
    np.testing.assert_array_equal(np.asarray(found["vision.norm2"]), np.asarray(expected["vision.norm2"]))


def test_other_colours_than_the_usual_ones(tmp_path: Path) -> None:
    text = write_text(tmp_path / "tiny.gguf", "gemma3", golden("gemma3"))
    write_mmproj(tmp_path / "mmproj-tiny.gguf", "gemma3", golden("gemma3"), **{"vision.image_mean": [0.25, 0.5, 0.75]})
    encoder = open_model(text).model.encoder
    assert encoder is not None
    assert encoder.colours == Colours(mean=(0.25, 0.5, 0.75), deviation=(0.5, 0.5, 0.5))


def test_a_gemma_4_without_embeddings_by_layer_sees_both_ways(tmp_path: Path) -> None:
    text = write_text(tmp_path / "tiny.gguf", "gemma4", golden("gemma4"))
    mmproj = write_mmproj(tmp_path / "mmproj-tiny.gguf", "gemma4", golden("gemma4"))
    opened = open_model(text)
    assert opened.mmproj == mmproj
    assert opened.model.encoder is not None
    assert not opened.model.encoder.sees_both_ways
    assert isinstance(opened.model, SeeingGemma4)
    large = dataclasses.replace(
        opened.model, config=dataclasses.replace(opened.model.config, layer_size=0), vision=None
    )
    found = find_vision_file(text, GGUFTensors(text), large, None)
    assert found is not None
    assert found.encoder.sees_both_ways
    assert found.encoder.num_features == opened.model.encoder.num_features + 2


def test_an_encoder_is_no_model_and_a_model_no_encoder(tmp_path: Path) -> None:
    text = write_text(tmp_path / "tiny.gguf", "gemma3", golden("gemma3"))
    mmproj = write_mmproj(tmp_path / "encoder.gguf", "gemma3", golden("gemma3"))
    with pytest.raises(ModelError, match="is an encoder of pictures"):
        open_model(mmproj)
    with pytest.raises(ModelError, match="is no encoder of pictures"):
        open_model(text, mmproj=text)
    with pytest.raises(ModelError, match="cannot be read"):
        open_model(text, mmproj=tmp_path / "missing.gguf")
    with pytest.raises(ModelError, match="language_model_only"):
        open_model(text, mmproj=mmproj, language_model_only=True)


def test_a_damaged_file_is_of_no_concern_to_a_model_without_an_encoder(tmp_path: Path) -> None:
    text = write_text(tmp_path / "tiny.gguf", "gemma3", golden("gemma3"))
    opened = open_model(text)
    (tmp_path / "mmproj-other.gguf").write_bytes(b"GGUF, cut")
    file = Mock(architecture="gpt2")
    assert find_vision_file(text, file, opened.model, None) is None


def test_a_truncated_file_beside_the_model_is_named(tmp_path: Path) -> None:
    text = write_text(tmp_path / "tiny.gguf", "gemma3", golden("gemma3"))
    whole = write_mmproj(tmp_path / "encoder.gguf", "gemma3", golden("gemma3")).read_bytes()
    for length in (3, 100, len(whole) // 2, len(whole) - 1):
        (tmp_path / "mmproj-tiny.gguf").write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"mmproj-tiny\.gguf .*language_model_only serves the text model"):
            open_model(text)
