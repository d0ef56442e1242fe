"""gpt-oss: experts of MXFP4 in folders and GGUF files, what configurations leave out, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFReader, GGUFWriter
from safetensors.numpy import save_file

from engine.backends.native.matrices import PackedLayout
from engine.client import EngineClient
from engine.interface.config import EngineConfig
from engine.interface.errors import ModelError
from engine.models.architectures.mixtures.gpt_oss import GptOss
from engine.models.open_model import open_model
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Precision
from tests.engine.models.same_model import assert_same_model
from tests.engine.models.twins.gguf_twins import write_gguf
from tests.forward_steps import ForwardSteps
from tests.golden.architectures.tiny_weights import tiny_weights

FOLDER = Path(__file__).parents[4] / "golden" / "architectures"
VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
GROUP = 32


def golden() -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """`config.json` and the tensors."""
    content = json.loads((FOLDER / "gpt_oss.json").read_text(encoding="utf-8"))
    return content["config"], tiny_weights(content["config"]["architectures"][0], content["shapes"], content["seed"])


def write_folder(path: Path, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file({name: np.ascontiguousarray(values) for name, values in tensors.items()}, path / "model.safetensors")
    return path


def rounded(tensors: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The same with random experts of MXFP4: as floats, and as the blocks and scales of a folder."""
    random = np.random.default_rng(0)
    floats, packed = dict(tensors), dict(tensors)
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        num_experts, num_inputs, num_outputs = tensors[name].shape
        codes = random.integers(0, 16, (num_experts, num_outputs, num_inputs // GROUP, GROUP), np.uint8)
        scales = random.integers(119, 126, codes.shape[:3], np.uint8)
        values = VALUES[codes] * np.exp2(scales.astype(np.float32) - 127)[..., None]
        floats[name] = values.reshape(num_experts, num_outputs, num_inputs).swapaxes(1, 2)
        del packed[name]
        packed[f"{name}_blocks"], packed[f"{name}_scales"] = codes[..., ::2] | codes[..., 1::2] << 4, scales
    return floats, packed


def as_packed(config: Mapping[str, Any]) -> dict[str, Any]:
    return {**config, "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}}


def with_packed_experts(path: Path, source: Path) -> Path:
    """A GGUF file whose experts are of MXFP4, of one whose experts are floats that these can be."""
    reader = GGUFReader(source)
    writer = GGUFWriter(path, "gpt-oss")
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            writer.add_key_value(field.name, field.contents(), field.types[0])
    for tensor in reader.tensors:
        if tensor.name.endswith("_exps.weight"):
            kind = GGMLQuantizationType.MXFP4
            writer.add_tensor(tensor.name, gguf.quants.quantize(tensor.data, kind), raw_dtype=kind)
        else:
            writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_folder_of_blocks_and_scales_is_the_model_of_their_numbers(tmp_path: Path) -> None:
    config, tensors = golden()
    floats, packed = rounded(tensors)
    one = write_folder(tmp_path / "floats", config, floats)
    other = write_folder(tmp_path / "packed", as_packed(config), packed)
    assert_same_model(one, other, 1 << 30)
    assert open_model(other).quantization == "mxfp4"


def test_experts_lie_in_memory_as_in_the_file_and_are_those_of_a_gguf_file(tmp_path: Path, native: str) -> None:
    config, tensors = golden()
    floats, packed = rounded(tensors)
    folder = write_folder(tmp_path / "packed", as_packed(config), packed)
    file = with_packed_experts(tmp_path / "packed.gguf", write_gguf(tmp_path / "tiny.gguf", config, floats))
    assert_same_model(folder, file, 1 << 30)
    outputs = []
    for path in (folder, file):
        steps = ForwardSteps.load(path, EngineConfig(matmul_backend="native", attention_backend="native"))
        assert "mxfp4" in open_model(path).load(PackedLayout(), Precision("auto", None), lambda *step: None).dtype
        outputs.append(steps.logits([[1, 2, 3, 4, 5, 6, 7]], num_decoded=2))
    np.testing.assert_array_equal(*outputs)
    of_experts = sum(values.size for name, values in packed.items() if name.endswith(("_blocks", "_scales")))
    rest = sum(values.size for name, values in packed.items() if not name.endswith(("_blocks", "_scales")))
    assert (
        EngineClient.footprint(folder, EngineConfig(matmul_backend="native")).weight_bytes
        < 1.15 * of_experts + 4.2 * rest
    )


def test_what_a_configuration_leaves_out_is_that_of_the_published_models() -> None:
    values = {
        "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 131_072,
        "num_local_experts": 4, "num_experts_per_tok": 2,
    }  # fmt: skip
    config = GptOss.from_folder(JsonFile(Path("config.json"), values), frozenset()).config
    assert (config.head_dim, config.windows, config.has_qkv_bias) == (64, (128, 0, 128), True)
    assert config.clamp == (1.702, 7.0)
    assert config.rotary[0].magnitude == pytest.approx(1 + 0.1 * np.log(32))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_attention_heads": 0}, "num_attention_heads is 0; it must be an integer from 1"),
        ({"num_local_experts": 2**31 - 1}, "have 2147483647 experts each; at most 4096"),
        ({"num_experts_per_tok": 7}, "a token cannot pick 7 of 6 experts"),
        ({"swiglu_limit": 0}, "swiglu_limit is 0; it must be a number above 0"),
        ({"layer_types": ["linear_attention"] * 4}, "layer_types is .*it must list 4 times"),
        ({"intermediate_size": 64}, "has shape .*, expected"),
        ({"quantization_config": {"quant_method": "mxfp8"}}, 'quant_method is "mxfp8"'),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "says that the model is quantised"),
    ],
)
def test_impossible_configurations_are_refused_by_name(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    config, tensors = golden()
    with pytest.raises(ModelError, match=message):
        open_model(write_folder(tmp_path / "folder", {**config, **changes}, tensors))


@pytest.mark.parametrize(
    "name", ["self_attn.sinks", "mlp.router.bias", "mlp.experts.down_proj_bias", "mlp.experts.gate_up_proj_scales"]
)
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    config, tensors = golden()
    _, packed = rounded(tensors)
    del packed[f"model.layers.2.{name}"]
    with pytest.raises(ModelError, match=f"lacks the tensor 'model.layers.2.{name}'"):
        open_model(write_folder(tmp_path / "folder", as_packed(config), packed))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("gate_up_proj_blocks", lambda values: values[..., :8], "its last axis must be 16 bytes of a group"),
        ("down_proj_scales", lambda values: values[..., :1], "_scales has shape .*, expected"),
        ("down_proj_blocks", lambda values: values.astype(np.int8), "is stored as I8; read are U8"),
    ],
)
def test_misshapen_tensors_are_named(tmp_path: Path, name: str, change: Any, message: str) -> None:
    config, tensors = golden()
    _, packed = rounded(tensors)
    name = f"model.layers.0.mlp.experts.{name}"
    packed[name] = change(packed[name])
    with pytest.raises(ModelError, match=message):
        open_model(write_folder(tmp_path / "folder", as_packed(config), packed))


def test_a_scale_that_is_no_number_is_refused(tmp_path: Path, native: str) -> None:
    config, tensors = golden()
    _, packed = rounded(tensors)
    packed["model.layers.1.mlp.experts.down_proj_scales"][2, 5, 1] = 255
    folder = write_folder(tmp_path / "folder", as_packed(config), packed)
    for backend in ("native", "xla"):
        with pytest.raises(ModelError, match=r"layers\.1\.mlp\.experts\.down_proj"):
            ForwardSteps.load(folder, EngineConfig(matmul_backend=backend, attention_backend=backend))


def test_the_tensors_of_the_gguf_package_are_all_read(tmp_path: Path) -> None:
    config, tensors = golden()
    file = write_gguf(tmp_path / "tiny.gguf", config, tensors)
    kinds = {gguf.TENSOR_NAMES[kind].removeprefix("blk.{bid}.") for kind in gguf.MODEL_TENSORS[MODEL_ARCH.GPT_OSS]}
    stored = {tensor.name.removeprefix("blk.0.").rpartition(".")[0] for tensor in GGUFReader(file).tensors}
    assert kinds <= stored
    assert open_model(file).architecture.name == "gpt-oss"
