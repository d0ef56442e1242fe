"""Folders of adapters in PEFT's layout: what is read of them, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from engine.adapters.adapter_stacks import AdapterStacks
from engine.adapters.gguf_adapter import open_adapter
from engine.adapters.peft_folder import PeftFolder
from engine.adapters.targets import AdapterTarget, targets_of
from engine.backends.xla.matrices import ArrayLayout
from engine.interface.config import AdapterLimits
from engine.interface.errors import ModelError
from engine.models.open_model import open_model
from engine.weights.layout import Precision
from tests.engine.adapters.peft_adapters import ALL, ATTENTION, pairs_of, rank_stabilised, write_adapter
from tests.engine.models.test_architectures import GOLDENS, tensors_of

CONFIG = {"r": 4, "lora_alpha": 8}
MODULE = "model.layers.1.self_attn.q_proj"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    (folder / "config.json").write_text(json.dumps(GOLDENS["llama"]["config"]), encoding="utf-8")
    save_file(tensors_of(GOLDENS["llama"]), folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def targets(model: Path) -> tuple[AdapterTarget, ...]:
    return targets_of(open_model(model).model)


def test_pairs_lie_by_leaf_layer_and_part_with_their_scale(
    tmp_path: Path, model: Path, targets: tuple[AdapterTarget, ...]
) -> None:
    pairs = pairs_of(model, ALL, 4, 1)
    read = PeftFolder(write_adapter(tmp_path / "a", pairs, CONFIG)).read(targets, 4, 8)
    down, up = pairs[MODULE]
    qkv = read.pairs["qkv"]
    np.testing.assert_array_equal(qkv.down[1, :4], down)
    assert not qkv.down[1, 4:8].any()  # fills up the rank
    np.testing.assert_array_equal(qkv.up[1, :4, : len(up)], 2 * up.T)
    assert qkv.rank == 4
    assert set(read.pairs) == {"qkv", "attention_output", "gate_up", "down"}


def test_what_an_adapter_does_not_change_is_missing(
    tmp_path: Path, model: Path, targets: tuple[AdapterTarget, ...]
) -> None:
    folder = write_adapter(tmp_path / "a", {MODULE: pairs_of(model, ATTENTION, 4, 1)[MODULE]}, CONFIG)
    read = PeftFolder(folder).read(targets, 4, 8)
    assert set(read.pairs) == {"qkv"}
    assert not read.pairs["qkv"].down[0].any()


def test_ranks_and_alphas_by_pattern_and_stabilised_ranks(
    tmp_path: Path, model: Path, targets: tuple[AdapterTarget, ...]
) -> None:
    pairs = pairs_of(model, ALL, 4, 1, {"q_proj": 2})
    config = {
        **CONFIG,
        "use_rslora": True,
        "rank_pattern": {r"^model\.layers\.\d+\.self_attn.q_proj": 2},
        "alpha_pattern": {"layers.1.self_attn.q_proj": 3},
    }
    qkv = PeftFolder(write_adapter(tmp_path / "a", pairs, config)).read(targets, 4, 8).pairs["qkv"]
    up = pairs[MODULE][1]
    np.testing.assert_allclose(qkv.up[1, :2, : len(up)], rank_stabilised(3, 2) * up.T, rtol=1e-6)
    other = pairs["model.layers.0.self_attn.q_proj"][1]
    np.testing.assert_allclose(qkv.up[0, :2, : len(up)], rank_stabilised(8, 2) * other.T, rtol=1e-6)
    assert qkv.rank == 4  # that of keys and values


def test_equal_weights_have_equal_digests_and_others_do_not(
    tmp_path: Path, model: Path, targets: tuple[AdapterTarget, ...]
) -> None:
    one, two = pairs_of(model, ATTENTION, 4, 1), pairs_of(model, ATTENTION, 4, 2)
    folders = [
        write_adapter(tmp_path / name, pairs, config)
        for name, pairs, config in (
            ("a", one, CONFIG),
            ("b", one, CONFIG),
            ("c", two, CONFIG),
            ("d", one, {"r": 4, "lora_alpha": 4}),
        )
    ]
    digests = [PeftFolder(folder).read(targets, 4, 8).digest for folder in folders]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"peft_type": "IA3"}, 'peft_type is "IA3"; only adapters of the type LORA'),
        ({"use_dora": True}, "DoRA, which is not served"),
        ({"modules_to_save": ["lm_head"]}, "modules to save"),
        ({"bias": "all"}, "bias is"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"init_lora_weights": "pissa_niter_4"}, "changes its base model too"),
        ({"r": 0}, "r is 0; it must be a positive integer"),
        ({"r": "8"}, "r is"),
        ({"lora_alpha": float("nan")}, "lora_alpha is NaN; it must be a number"),
        ({"rank_pattern": {"q_proj": -1}}, "rank_pattern is"),
        ({"rank_pattern": {"(a+)+": 2}}, "repeats no group"),
        ({"rank_pattern": {"model.*": 2}}, "is no regular expression"),
        ({"rank_pattern": {f"m{number}": 2 for number in range(5000)}}, "at most 4096 are read"),
        ({"rank_pattern": {"q_proj": 10**400}}, "must be positive numbers"),
        ({"lora_alpha": 10**400}, "lora_alpha is"),
        ({"rank_pattern": {".*" * 40 + "x": 2}}, "at most 3 groups and repeats"),
        ({"alpha_pattern": {"(?:.|.)" * 20 + "!": 2}}, "at most 3 groups and repeats"),
        ({"alpha_pattern": {"[": 2}}, "no regular expression"),
        ({"r": 2}, "matrices of the rank 4, and adapter_config.json says 2"),
    ],
)
def test_configurations_that_are_not_served(
    tmp_path: Path, model: Path, targets: tuple[AdapterTarget, ...], config: dict[str, Any], message: str
) -> None:
    folder = write_adapter(tmp_path / "a", pairs_of(model, ATTENTION, 4, 1), {**CONFIG, **config})
    with pytest.raises(ModelError) as refused:
        PeftFolder(folder).read(targets, 4, 8)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("tensor", "shape", "message"),
    [
        ("model.layers.0.self_attn.q_proj.lora_magnitude_vector", (64,), "DoRA"),
        ("model.embed_tokens.lora_embedding_A", (4, 64), "changes of the embedding"),
        ("model.lm_head.weight", (64, 64), "modules to save are not served"),
        ("model.layers.0.mlp.experts.0.up_proj.lora_A.weight", (4, 64), "layers.0.mlp.experts.0.up_proj"),
        ("lm_head.lora_A.weight", (4, 64), "lm_head"),
        ("model.layers.0.self_attn.q_proj.lora_A.other.weight", (4, 64), "layers.0.self_attn.q_proj twice"),
        ("model.layers.99.self_attn.q_proj.lora_A.weight", (4, 64), "layers.99.self_attn.q_proj"),
    ],
)
def test_tensors_that_are_not_served(
    tmp_path: Path, model: Path, targets: tuple[AdapterTarget, ...], tensor: str, shape: tuple[int, ...], message: str
) -> None:
    extra = {f"base_model.model.{tensor}": np.zeros(shape, np.float32)}
    with pytest.raises(ModelError) as refused:
        PeftFolder(write_adapter(tmp_path / "a", pairs_of(model, ATTENTION, 4, 1), CONFIG, extra)).read(targets, 4, 8)
    assert message in str(refused.value)


def test_an_adapter_of_another_model_is_refused_with_the_name_of_that(
    tmp_path: Path, targets: tuple[AdapterTarget, ...]
) -> None:
    pairs = {MODULE: (np.zeros((4, 96), np.float32), np.zeros((96, 4), np.float32))}
    with pytest.raises(ModelError, match=r"96 outputs and 96 inputs, .* it was made for someone/base"):
        PeftFolder(write_adapter(tmp_path / "a", pairs, CONFIG)).read(targets, 4, 8)


def test_a_rank_too_large_is_refused_with_the_limit(
    tmp_path: Path, model: Path, targets: tuple[AdapterTarget, ...]
) -> None:
    folder = write_adapter(tmp_path / "a", pairs_of(model, ATTENTION, 4, 1), CONFIG)
    with pytest.raises(ModelError, match="the adapter has the rank 4, and max_lora_rank is 2"):
        PeftFolder(folder).read(targets, 2, 8)


def test_numbers_that_are_not_finite_are_refused(
    tmp_path: Path, model: Path, targets: tuple[AdapterTarget, ...]
) -> None:
    pairs = pairs_of(model, ATTENTION, 4, 1)
    pairs[MODULE][0][0, 0] = np.nan
    with pytest.raises(ModelError, match="not finite"):
        PeftFolder(write_adapter(tmp_path / "a", pairs, CONFIG)).read(targets, 4, 8)


def test_half_a_folder_is_refused(tmp_path: Path, model: Path, targets: tuple[AdapterTarget, ...]) -> None:
    folder = write_adapter(tmp_path / "a", pairs_of(model, ATTENTION, 4, 1), CONFIG)
    weights, config = folder / "adapter_model.safetensors", folder / "adapter_config.json"

    def refusal() -> str:
        with pytest.raises(ModelError) as refused:
            PeftFolder(folder).read(targets, 4, 8)
        return str(refused.value)

    whole, tensors = weights.read_bytes(), load_file(weights)
    half = {name: tensor for name, tensor in tensors.items() if "layers.1.self_attn.q_proj.lora_B" not in name}
    save_file(half, weights)
    assert "layers.1.self_attn.q_proj has no lora_B" in refusal()
    weights.write_bytes(whole[: len(whole) // 2])
    assert "cut short" in refusal()
    weights.rename(folder / "adapter_model.bin")
    assert "pickles are not read" in refusal()
    (folder / "adapter_model.bin").unlink()
    assert "it has no adapter_model.safetensors" in refusal()
    config.write_text("{")
    assert "no JSON" in refusal()
    config.unlink()
    assert "it has no adapter_config.json" in refusal()
    with pytest.raises(ModelError, match="is no adapter"):
        open_adapter(folder / "missing")


def test_numbers_that_the_type_of_the_weights_does_not_have_are_refused(
    tmp_path: Path, model: Path, targets: tuple[AdapterTarget, ...]
) -> None:
    pairs = pairs_of(model, ("q_proj",), 4, 1)
    pairs[MODULE][0][0, 0] = 1e5
    folder = write_adapter(tmp_path / "a", pairs, CONFIG)
    PeftFolder(folder).read(targets, 4, 8)
    halves = Precision("float16", None)
    with pytest.raises(ModelError, match="too large for float16"):
        AdapterStacks(targets[:1], AdapterLimits(1, 4), ArrayLayout(), halves, ("llama",)).read(folder)
