"""Weights from a GGUF file: names, layouts and what cannot be served."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

from engine.backends.backends import BACKENDS
from engine.backends.xla.matrices import ArrayLayout
from engine.interface.errors import ModelError
from engine.models.open_model import open_model
from engine.models.parts.rotary import plain, yarn
from engine.weights.layout import Precision

HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, VOCAB = 64, 96, 2, 4, 2, 50
HEAD_DIM = HIDDEN // HEADS
SHAPES = {
    "attn_norm": (HIDDEN,),
    "attn_q": (HIDDEN, HIDDEN),
    "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_output": (HIDDEN, HIDDEN),
    "ffn_norm": (HIDDEN,),
    "ffn_gate": (INTERMEDIATE, HIDDEN),
    "ffn_up": (INTERMEDIATE, HIDDEN),
    "ffn_down": (HIDDEN, INTERMEDIATE),
}


YARN = {"llama.rope.scaling.type": "yarn"}


def load(path, dtype="float32", progress=lambda *step: None):
    """Weights as arrays for XLA."""
    return open_model(path).load(ArrayLayout(), Precision(dtype, None), progress).params


def in_every_layer(name, shape):
    return {f"blk.{layer}.{name}.weight": shape for layer in range(LAYERS)}


def permute(weight):
    """Rows of each head as files of this architecture store them: feature i beside feature i + d/2."""
    halves = weight.reshape(-1, 2, HEAD_DIM // 2, weight.shape[-1])
    return halves.swapaxes(1, 2).reshape(weight.shape)


@pytest.fixture
def write(tmp_path):
    """Writes a tiny model; returns its path and its tensors as a reference would name them."""

    def write(
        *,
        architecture="llama",
        leave_out=(),
        tied=True,
        extra=None,
        quantised=False,
        reshape=None,
        sizes=None,
        factors=None,
    ):
        random = np.random.default_rng(0)
        writer = GGUFWriter(tmp_path / "tiny.gguf", architecture)
        usual = {
            "block_count": LAYERS,
            "context_length": 128,
            "embedding_length": HIDDEN,
            "feed_forward_length": INTERMEDIATE,
            "head_count": HEADS,
            "head_count_kv": KV_HEADS,
            "layer_norm_rms_eps": 1e-5,
        }
        for name, size in (usual | (sizes or {})).items():
            getattr(writer, f"add_{name}")(size)
        writer.add_rope_freq_base(5000.0)
        if factors is not None:
            writer.add_tensor("rope_freqs.weight", factors.astype(np.float32))
        for key, value in (extra or {}).items():
            writer.add_string(key, value)
        names = {"token_embd.weight": (VOCAB, HIDDEN), "output_norm.weight": (HIDDEN,)}
        if not tied:
            names["output.weight"] = (VOCAB, HIDDEN)
        for layer in range(LAYERS):
            names |= {f"blk.{layer}.{name}.weight": shape for name, shape in SHAPES.items()}
        tensors = {}
        for name, shape in names.items():
            tensors[name] = random.standard_normal((reshape or {}).get(name, shape)).astype(np.float32)
            if name in leave_out:
                continue
            stored = permute(tensors[name]) if ".attn_q." in name or ".attn_k." in name else tensors[name]
            if quantised and stored.ndim == 2:
                data = quantize(stored, GGMLQuantizationType.Q8_0)
                writer.add_tensor(name, data, raw_dtype=GGMLQuantizationType.Q8_0)
            else:
                writer.add_tensor(name, stored)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return tmp_path / "tiny.gguf", tensors

    return write


def test_the_tree_holds_what_the_file_holds(write):
    path, tensors = write(tied=False)
    config = open_model(path).config
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (2, 4, 2, 16)
    assert (config.vocab_size, config.context_length, config.rms_norm_eps) == (50, 128, 1e-5)
    assert config.rotary == (plain(HEAD_DIM, 5000.0),)
    told = []
    params = load(path, progress=lambda *step: told.append(step))
    for layer in range(LAYERS):
        part = {name: tensors[f"blk.{layer}.{name}.weight"] for name in SHAPES}
        joined = np.concatenate([part["attn_q"], part["attn_k"], part["attn_v"]]).T
        assert np.array_equal(params["qkv"][layer], joined)
        assert np.array_equal(params["attention_output"][layer], part["attn_output"].T)
        assert np.array_equal(params["gate_up"][layer], np.concatenate([part["ffn_gate"], part["ffn_up"]]).T)
        assert np.array_equal(params["down"][layer], part["ffn_down"].T)
        assert np.array_equal(params["attention_norm"][layer], part["attn_norm"])
        assert np.array_equal(params["mlp_norm"][layer], part["ffn_norm"])
    assert np.array_equal(params["embedding"], tensors["token_embd.weight"])
    assert np.array_equal(params["output"], tensors["output.weight"])
    assert told[-1][1] == told[-1][2] > 0
    assert [step[1] for step in told] == sorted(step[1] for step in told)


def test_quantised_tensors_come_within_their_error_and_a_tied_output_is_absent(write):
    path, tensors = write(quantised=True)
    params = load(path)
    assert "output" not in params
    largest = np.abs(tensors["token_embd.weight"]).max()
    assert np.abs(params["embedding"] - tensors["token_embd.weight"]).max() <= largest / 127


def test_a_stated_magnitude_of_yarn_is_taken(write):
    sizes = {"rope_scaling_factor": 4.0, "rope_scaling_yarn_attn_factor": 1.25}
    path, _ = write(extra=YARN, sizes=sizes)
    expected = yarn(HEAD_DIM, 5000.0, factor=4.0, original_context=128, magnitude=1.25)
    assert open_model(path).config.rotary == (expected,)


def test_bfloat16_is_the_nearest(write):
    path, tensors = write()
    params = load(path, "bfloat16")
    down = np.asarray(params["down"][0], np.float32)
    assert str(params["down"].dtype) == "bfloat16"
    np.testing.assert_allclose(down, tensors["blk.0.ffn_down.weight"].T, rtol=2**-8)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"architecture": "rwkv6"}, "the architecture 'rwkv6' is not served"),
        ({"leave_out": ("blk.1.ffn_up.weight",)}, "no tensor 'blk.1.ffn_up.weight'"),
        ({"extra": {"llama.rope.scaling.type": "longrope"}}, "rotary scaling of type 'longrope'"),
        ({"sizes": {"rope_dimension_count": 8}}, "a rotary embedding over a part of the head"),
        ({"sizes": {"causal_attention": False}}, "attention.causal' is False; a decoder whose tokens see"),
        ({"sizes": {"rope_scaling_yarn_ext_factor": 0.5}, "extra": YARN}, "yarn_ext_factor' is 0.5; only 1 is served"),
        ({"factors": np.ones(HEAD_DIM)}, r"rope_freqs.weight has shape \(16,\), expected \(8,\)"),
        ({"factors": np.zeros(HEAD_DIM // 2)}, "rope_freqs.weight has a factor that is not above 0"),
        ({"factors": np.ones(HEAD_DIM // 2), "extra": YARN}, "type 'yarn' beside the tensor 'rope_freqs.weight'"),
        ({"reshape": {"blk.1.ffn_down.weight": (HIDDEN, 32)}}, "blk.1.ffn_down.weight has shape"),
        # In every layer, so that the layers agree with each other; native products pad these to whole tiles.
        ({"reshape": in_every_layer("ffn_down", (HIDDEN - 4, INTERMEDIATE))}, r"blk.0.ffn_down.weight has shape \(60,"),
        ({"reshape": in_every_layer("ffn_gate", (INTERMEDIATE, 32))}, "blk.0.ffn_gate.weight has shape"),
        ({"reshape": in_every_layer("attn_norm", (HIDDEN // 2,))}, "blk.0.attn_norm.weight has shape"),
        (
            # As many outputs together as queries, keys and values should have.
            {"reshape": in_every_layer("attn_k", (48, HIDDEN)) | in_every_layer("attn_v", (16, HIDDEN))},
            r"blk.0.attn_k.weight has shape \(48, 64\), expected \(32, 64\)",
        ),
        ({"reshape": {"output.weight": (VOCAB - 10, HIDDEN)}, "tied": False}, "output.weight has shape"),
        ({"reshape": {"token_embd.weight": (HIDDEN,)}}, "token_embd.weight is no matrix"),
        ({"sizes": {"head_count": 0}}, "llama.attention.head_count' is 0; it must be a number above 0"),
        ({"sizes": {"head_count_kv": 3}}, "4 heads cannot share 3 heads of keys evenly"),
        ({"sizes": {"key_length": 15}}, "the head dimension is 15"),
        ({"sizes": {"head_count": 128, "head_count_kv": 2}}, "the head dimension is 0"),
        ({"reshape": {"token_embd.weight": (0, HIDDEN)}}, "token_embd.weight has no rows"),
        ({"sizes": {"block_count": 1 << 31}}, "it must be an int32 above 0"),
        ({"sizes": {"block_count": 10_000}}, "tensors, too few for 10000 layers"),
        ({"sizes": {"layer_norm_rms_eps": float("nan")}}, "layer_norm_rms_epsilon' is nan"),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_what_cannot_be_served_is_said(write, options, words, backend):
    path, _ = write(**options)
    with pytest.raises(ModelError, match=words):
        open_model(path).load(backend.weights, Precision("float32", None), lambda *step: None)


def test_a_file_of_something_else_is_refused(tmp_path):
    path = tmp_path / "text.gguf"
    path.write_text("no model")
    with pytest.raises(ModelError, match="no GGUF file"):
        open_model(path)
