"""Weights from a folder in Hugging Face's layout: the same as from GGUF, and what cannot be served."""

import json
import os

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from engine.backends.native.matrices import PackedLayout
from engine.backends.xla.matrices import ArrayLayout
from engine.interface.errors import ModelError
from engine.models.open_model import open_model
from engine.models.parts.rotary import divided, plain, yarn
from engine.weights.formats.model_folder import ModelFolder
from engine.weights.formats.safetensors_files import SafetensorsFiles
from engine.weights.layout import Precision
from tests.golden.tiny_llama import CONFIG, weights
from tests.model_folders import TYPES, write_folder, write_gguf_twin, write_json, write_tensors

DOWN = "model.layers.1.mlp.down_proj.weight"
Q_PROJ = "model.layers.0.self_attn.q_proj.weight"
INDEX = "model.safetensors.index.json"
YARN = {"type": "yarn", "factor": 4}
LLAMA3 = {"type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}


def load(path, dtype="float32"):
    """Weights as arrays for XLA."""
    return open_model(path).load(ArrayLayout(), Precision(dtype, None), lambda stage, done, total: None).params


def assert_same_tree(first, second):
    assert jax.tree.structure(first) == jax.tree.structure(second)
    for one, other in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)


@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize(
    ("layout", "precision"),
    [
        (ArrayLayout(), Precision("float32", None)),
        (ArrayLayout(), Precision("bfloat16", None)),
        (PackedLayout(), Precision("float32", None)),
        (PackedLayout(), Precision("auto", "int8")),
    ],
    ids=["xla", "xla in bfloat16", "native", "native in int8"],
)
def test_equals_the_same_weights_from_gguf(tmp_path, num_shards, layout, precision):
    folder = open_model(write_folder(tmp_path / "model", num_shards=num_shards))
    gguf = open_model(write_gguf_twin(tmp_path / "twin.gguf"))
    assert (folder.model, folder.architecture) == (gguf.model, gguf.architecture)
    told = []
    weights_of_folder = folder.load(layout, precision, lambda *step: told.append(step))
    weights_of_gguf = gguf.load(layout, precision, lambda *step: None)
    assert_same_tree(weights_of_folder.params, weights_of_gguf.params)
    assert weights_of_folder[1:] == weights_of_gguf[1:]
    num_bytes = sum(values.nbytes for values in weights(CONFIG).values())
    assert told[-1] == ("load weights", num_bytes, num_bytes)
    assert [step[1] for step in told] == sorted(step[1] for step in told)


def quantised(tensors: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The tensors with every matrix of a layer as integers of 8 bits and scales, and the weights that those are."""
    stored, exact = {}, {}
    for name, values in tensors.items():
        if "_proj." not in name:
            stored[name] = exact[name] = values
            continue
        scales = (np.abs(values).max(axis=1, keepdims=True) / 127).astype(np.float16)
        stored[name] = np.rint(values / scales).astype(np.int8)
        stored[f"{name}_scale"] = scales
        exact[name] = stored[name].astype(np.float32) * scales.astype(np.float32)
    return stored, exact


INT8 = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}},
}


def test_a_quantised_folder_is_the_model_of_its_weights(tmp_path):
    stored, exact = quantised(weights(CONFIG))
    # Tools for GPTQ write biases of zeros where a model has none.
    stored[DOWN.replace("weight", "bias")] = np.zeros(64, np.float16)
    folder = write_folder(tmp_path / "quantised", config={"quantization_config": INT8})
    write_tensors(folder, stored)
    opened = open_model(folder)
    assert opened.quantization == "compressed-tensors int8"
    expected = load(write_folder(tmp_path / "floats", tensors=exact))
    assert_same_tree(load(folder), expected)
    packed = opened.load(PackedLayout(), Precision("auto", None), lambda *step: None)
    assert packed.dtype == "bfloat16+int8"


def test_a_bias_that_is_not_zero_is_not_left_out(tmp_path):
    stored, _ = quantised(weights(CONFIG))
    stored[DOWN.replace("weight", "bias")] = np.ones(64, np.float16)
    folder = write_folder(tmp_path, config={"quantization_config": INT8})
    write_tensors(folder, stored)
    with pytest.raises(ModelError, match=r"down_proj\.bias"):
        open_model(folder)


@pytest.mark.parametrize("stored_as", ["F16", "BF16"])
def test_short_floats_are_widened_exactly(tmp_path, stored_as):
    params = load(write_folder(tmp_path, stored_as=stored_as))
    stored = weights(CONFIG)[DOWN].astype(TYPES[stored_as]).astype(np.float32)
    assert params["down"].dtype == np.float32
    assert np.array_equal(params["down"][1], stored.T)


def test_bfloat16_passes_through(tmp_path):
    params = load(write_folder(tmp_path, stored_as="BF16"), "bfloat16")
    assert np.array_equal(params["embedding"], weights(CONFIG)["model.embed_tokens.weight"].astype(ml_dtypes.bfloat16))


def test_a_tied_output_is_absent_unless_it_is_stored(tmp_path):
    tied = {"tie_word_embeddings": True}
    assert "output" in load(write_folder(tmp_path / "untied"))
    assert "output" not in load(write_folder(tmp_path / "tied", config=tied))
    stored = weights(CONFIG)
    params = load(write_folder(tmp_path / "both", config=tied, tensors=stored))
    assert np.array_equal(params["output"], stored["lm_head.weight"])


def test_tensors_are_known_by_their_names(tmp_path):
    files = SafetensorsFiles(ModelFolder(write_folder(tmp_path)))
    tensor = files.tensor(Q_PROJ)
    assert (tensor.shape, tensor.num_bytes) == ((128, 64), 128 * 64 * 4)
    assert np.array_equal(tensor.float32(), weights(CONFIG)[Q_PROJ])
    assert files.tensor("model.layers.2.self_attn.q_proj.weight") is None


def test_what_follows_from_the_configuration_may_be_stored(tmp_path):
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(16, np.float32)}
    assert load(write_folder(tmp_path, tensors=weights(CONFIG) | extra))["embedding"].shape == (320, 64)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"head_dim": None, "hidden_size": 128}, {"head_dim": 32, "hidden_size": 128}),
        ({"num_key_value_heads": None}, {"num_kv_heads": 4}),
        ({"rope_theta": None, "rms_norm_eps": None}, {"rotary": (plain(32, 10000.0),), "rms_norm_eps": 1e-6}),
        (
            {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 7.5}},
            {"rotary": (plain(32, 7.5),)},
        ),
        ({"rope_scaling": {"type": "none"}, "partial_rotary_factor": 1}, {"rotary": (plain(32, 5000.0),)}),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, {"rotary": (divided(32, 5000.0, 2.0),)}),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 128}},
            {"rotary": (yarn(32, 5000.0, factor=4, original_context=128),), "context_length": 512},
        ),
        (
            {"rope_scaling": YARN | {"original_max_position_embeddings": 32}, "original_max_position_embeddings": 128},
            {"rotary": (yarn(32, 5000.0, factor=4, original_context=128),), "context_length": 256},
        ),
        (
            {"rope_scaling": YARN | {"attention_factor": 1.25, "truncate": False}},
            {"rotary": (yarn(32, 5000.0, factor=4, original_context=256, is_truncated=False, magnitude=1.25),)},
        ),
        (
            {"rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}},
            {"rotary": (yarn(32, 5000.0, factor=4, original_context=256, magnitude=1.0),), "context_length": 256},
        ),
    ],
)
def test_what_the_configuration_leaves_out(tmp_path, config, expected):
    effective = {"head_dim": 32, "num_key_value_heads": 4 if "num_key_value_heads" in config else 2}
    tensors = weights(CONFIG | {key: value for key, value in config.items() if value is not None} | effective)
    model = open_model(write_folder(tmp_path, config=config, tensors=tensors))
    assert {name: getattr(model.config, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"architectures": ["RwkvForCausalLM"]}, r'architectures is \["RwkvForCausalLM"\]; .* serves \["Llama'),
        ({"architectures": None}, "architectures is null"),
        ({"architectures": ["LlamaForTokenClassification"]}, "architectures is"),
        ({"model_type": "mllama"}, 'model_type is "mllama"'),
        ({"hidden_act": "gelu"}, 'hidden_act is "gelu"'),
        ({"rope_scaling": {"rope_type": "ntk", "factor": 8.0}}, 'rope_type is "ntk"; rotary scaling is served'),
        ({"rope_parameters": {"type": "ntk", "factor": 2.0}}, ' type is "ntk"; rotary scaling is served of'),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "lacks low_freq_factor"),
        (
            {"rope_scaling": LLAMA3 | {"high_freq_factor": 1}},
            r"high_freq_factor is 1; it must be above low_freq_factor",
        ),
        ({"rope_scaling": {"type": "linear"}}, "lacks factor"),
        ({"rope_scaling": {"type": "linear", "factor": -2.0}}, "factor is -2.0; it must be a number above 0"),
        ({"rope_scaling": YARN | {"mscale": "1"}}, 'mscale is "1"; it must be a number'),
        ({"rope_theta": 1e-300}, "rotary embedding give frequencies that are not finite"),
        ({"rope_scaling": {"type": "linear", "factor": 1e-300}}, "give frequencies that are not finite"),
        ({"rope_scaling": YARN, "rope_theta": 1.0}, "rope_theta is 1.0; for YaRN it must be above 1"),
        ({"rope_scaling": YARN | {"beta_fast": 1e308}}, r"features cannot turn 1e\+308 times"),
        ({"rope_scaling": YARN | {"beta_slow": 1e-323}}, "features cannot turn 1e-323 times"),
        (
            {"rope_scaling": {"type": "yarn", "factor": 1e308, "original_max_position_embeddings": 128}},
            r"factor is 1e\+308; no context is so long",
        ),
        ({"is_causal": False}, "is_causal is false; a decoder whose tokens see what comes later is not served"),
        ({"rope_scaling": "dynamic"}, "rope_scaling is .*; it must be an object"),
        ({"attention_bias": True}, "lacks the tensors 'model.layers.0.self_attn.q_proj.bias', "),
        ({"mlp_bias": True}, "lacks the tensors 'model.layers.0.mlp.gate_proj.bias', "),
        ({"mlp_bias": "no"}, "mlp_bias is .*; it must be true or false"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5; a rotary embedding over a part"),
        ({"rope_parameters": {"partial_rotary_factor": 0.25}}, "partial_rotary_factor is 0.25"),
        ({"quantization_config": {"quant_method": "hqq"}}, 'quant_method is "hqq"; quantised checkpoints are read of'),
        (
            {"quantization_config": {"quant_method": "fp8"}},
            r"says that the model is quantised \(fp8\), but no tensor is",
        ),
        ({"hidden_size": None}, "lacks hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0; it must be an integer from 1 to"),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers is 1000000000000; it must be an integer"),
        ({"num_hidden_layers": True}, "num_hidden_layers is true; it must be an integer"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is NaN; it must be a number above 0"),
        ({"num_key_value_heads": 3}, r"num_key_value_heads is 3; it must divide num_attention_heads \(4\)"),
        ({"head_dim": None, "num_attention_heads": 6}, r"num_attention_heads is 6; it must divide hidden_size \(64\)"),
        ({"head_dim": 33}, "the head dimension is 33"),
        ({"head_dim": 1 << 20}, "the head dimension is 1048576; it must be at most 16384"),
    ],
)
def test_configurations_that_are_not_served(tmp_path, config, words):
    folder = write_folder(tmp_path, tensors=weights(CONFIG))
    changed = {key: value for key, value in {**CONFIG, **config}.items() if value is not None}
    write_json(folder / "config.json", changed)
    with pytest.raises(ModelError, match=words):
        open_model(folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tensors: tensors.pop(DOWN), f"lacks the tensor '{DOWN}'"),
        (lambda tensors: tensors.pop("lm_head.weight"), "lacks the tensor 'lm_head.weight'"),
        (lambda tensors: tensors.clear() or tensors.update(x=np.ones(1, np.float32)), "lacks the tensors .* 18 more"),
        (
            lambda tensors: tensors.update({DOWN: np.ones((96, 64), np.float32)}),
            r"down_proj.weight has shape \(96, 64\), ",
        ),
        (lambda tensors: tensors.update({DOWN: np.ones(6144, np.float32)}), r"expected \(64, 96\)"),
        (
            lambda tensors: tensors.update({DOWN: np.ones((64, 96), np.int8)}),
            "down_proj.weight is stored as I8; read are",
        ),
        (
            lambda tensors: tensors.update({Q_PROJ.replace("weight", "bias"): np.ones(128, np.float32)}),
            "has what LlamaForCausalLM does not: the tensor 'model.layers.0.self_attn.q_proj.bias'",
        ),
    ],
)
@pytest.mark.parametrize("num_shards", [1, 2])
def test_wrong_tensors_are_named(tmp_path, change, words, num_shards):
    folder = write_folder(tmp_path, num_shards=num_shards)
    tensors = weights(CONFIG)
    change(tensors)
    write_tensors(folder, tensors, num_shards)
    with pytest.raises(ModelError, match=words):
        open_model(folder)


@pytest.mark.parametrize("keep", [0, 7, 100, -1])
def test_files_cut_short_are_told(tmp_path, keep):
    path = write_folder(tmp_path) / "model.safetensors"
    os.truncate(path, keep if keep >= 0 else path.stat().st_size - 1)
    with pytest.raises(ModelError, match=r"model.safetensors is no safetensors file, or it is damaged or cut short"):
        open_model(tmp_path)


def test_junk_is_told(tmp_path):
    (write_folder(tmp_path) / "model.safetensors").write_bytes(b"<html>404</html>" * 9)
    with pytest.raises(ModelError, match="is no safetensors file"):
        open_model(tmp_path)


def test_a_pointer_in_the_place_of_the_weights_is_told(tmp_path):
    (write_folder(tmp_path) / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid")
    with pytest.raises(ModelError, match=r"model.safetensors is a pointer of Git LFS.*git lfs pull"):
        open_model(tmp_path)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pytorch_model.bin", "but pytorch_model.bin: pickles are not read"),
        ("model-00001-of-00002.safetensors", "but model-00001-of-00002.safetensors: fetch the index"),
        ("tf_model.h5", "no other format is read"),
    ],
)
def test_a_folder_without_weights_is_told_with_what_it_has(tmp_path, name, words):
    (write_folder(tmp_path) / "model.safetensors").rename(tmp_path / name)
    with pytest.raises(ModelError, match=rf"has neither model.safetensors nor model.safetensors.index.json.*{words}"):
        open_model(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[1]", "nul", '"\ud800"', "[" * 100_000])
def test_a_damaged_configuration_is_told(tmp_path, content):
    (write_folder(tmp_path) / "config.json").write_text(content, encoding="utf-8", errors="surrogatepass")
    with pytest.raises(ModelError, match=r"config.json is damaged"):
        open_model(tmp_path)


def test_a_folder_without_a_configuration_is_told(tmp_path):
    (write_folder(tmp_path) / "config.json").unlink()
    with pytest.raises(ModelError, match=r"is no model folder: it has no config.json"):
        open_model(tmp_path)


@pytest.mark.parametrize(
    ("shard", "words"),
    [
        ("model-00009-of-00002.safetensors", "names the shard 'model-00009-of-00002.safetensors', which is missing"),
        ("../elsewhere.safetensors", "names the shard '../elsewhere.safetensors'; it must be a"),
        ("{outside}", "it must be a .*.safetensors file of the same folder"),
        ("shards/model.safetensors", "it must be a"),
        ("..", "it must be a"),
        ("", "it must be a"),
        ("config.json", "it must be a"),
        ("a\0.safetensors", "it must be a"),
        ("x" * 5000 + ".safetensors", "cannot be read|is missing"),
    ],
)
def test_an_index_leads_nowhere_else(tmp_path, shard, words):
    folder = write_folder(tmp_path / "model", num_shards=2)
    outside = tmp_path / "elsewhere.safetensors"
    save_file(weights(CONFIG), outside)
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"][DOWN] = shard.format(outside=outside)
    write_json(folder / INDEX, index)
    with pytest.raises(ModelError, match=words):
        open_model(folder)


def test_an_index_that_names_the_wrong_shard_is_told(tmp_path):
    folder = write_folder(tmp_path, num_shards=2)
    index = json.loads((folder / INDEX).read_text())
    (other,) = set(index["weight_map"].values()) - {index["weight_map"][DOWN]}
    index["weight_map"][DOWN] = other
    write_json(folder / INDEX, index)
    with pytest.raises(ModelError, match=f"{other} has no tensor '{DOWN}', although"):
        open_model(folder)


@pytest.mark.parametrize("weight_map", [None, [], {}, {DOWN: 1}, "x"])
def test_a_damaged_index_is_told(tmp_path, weight_map):
    folder = write_folder(tmp_path, num_shards=2)
    write_json(folder / INDEX, {"weight_map": weight_map})
    with pytest.raises(ModelError, match="weight_map must map tensors to files"):
        open_model(folder)


def test_files_may_be_links(tmp_path):
    """The cache of Hugging Face's hub is made of links."""
    store, folder = write_folder(tmp_path / "store", num_shards=2), tmp_path / "snapshot"
    folder.mkdir()
    for path in store.iterdir():
        (folder / path.name).symlink_to(path)
    assert_same_tree(load(folder), load(store))
