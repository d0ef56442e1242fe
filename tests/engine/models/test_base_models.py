"""Folders of base models, whose tensors have no prefix and no output matrix, as encoders made of decoders are."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from engine.backends.xla.matrices import ArrayLayout
from engine.interface.config import ModelInfo
from engine.interface.errors import ModelError
from engine.models.open_model import open_model
from engine.models.registry import ARCHITECTURES, is_headless
from engine.weights.layout import Precision
from server.startup.model_task import Task, tasks_of
from tests.golden.architectures.tiny_weights import tiny_weights

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "architectures" / "qwen3.json").read_text(encoding="utf-8"))
TENSORS = tiny_weights(GOLDEN["config"]["architectures"][0], GOLDEN["shapes"], GOLDEN["seed"])


def folder(path: Path, tensors: dict[str, np.ndarray], **changes: object) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(GOLDEN["config"] | changes), encoding="utf-8")
    save_file(tensors, path / "model.safetensors")
    return path


def test_a_base_model_has_the_same_weights(tmp_path: Path) -> None:
    base = {name.removeprefix("model."): values for name, values in TENSORS.items() if name != "lm_head.weight"}
    whole, bare = (
        open_model(folder(tmp_path / name, tensors)).load(ArrayLayout(), Precision("float32", None), lambda *_: None)
        for name, tensors in (("whole", TENSORS), ("bare", base))
    )
    assert whole.params.keys() - {"output"} == bare.params.keys()
    for name, array in bare.params.items():
        assert np.array_equal(array, whole.params[name]), name


def test_a_base_model_without_a_tensor_is_refused(tmp_path: Path) -> None:
    base = {name.removeprefix("model."): values for name, values in TENSORS.items() if name != "lm_head.weight"}
    del base["norm.weight"]
    with pytest.raises(ModelError, match=r"lacks the tensor 'norm.weight'"):
        open_model(folder(tmp_path / "bare", base))


@pytest.mark.parametrize(("class_name", "expected"), [("Qwen3ForCausalLM", False), ("Qwen3Model", True)])
def test_the_class_of_a_base_model_says_that_it_generates_nothing(
    tmp_path: Path, class_name: str, expected: bool
) -> None:
    base = {name.removeprefix("model."): values for name, values in TENSORS.items() if name != "lm_head.weight"}
    opened = open_model(folder(tmp_path / "bare", base, architectures=[class_name]))
    assert is_headless(opened.architecture) is expected


def test_other_names_that_end_alike_are_of_models_that_generate() -> None:
    assert [each.transformers_name for each in ARCHITECTURES if is_headless(each)] == []


def test_a_model_that_generates_nothing_embeds_alone() -> None:
    info = ModelInfo("qwen3", 64, 64, "float32", 0, "cpu", "xla", "xla", "", is_headless=True)
    assert tasks_of(info) == (Task.EMBED,)
