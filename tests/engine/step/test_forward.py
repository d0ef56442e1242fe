"""Logits of a small model: near the exact ones in every format and backend, and the same bits in any steps."""

import dataclasses

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from engine.backends.base.backend import Backends
from engine.backends.xla.backend import BACKEND as XLA_BACKEND
from engine.interface.config import EngineConfig
from engine.weights.packing import PackedMatrix
from tests.forward_steps import QUICK_TO_COMPILE, ForwardSteps
from tests.gguf_tensors import VOCAB_SIZE, write_random_model
from tests.packed_blocks import unpack_layers

pytestmark = pytest.mark.usefixtures("native")

XLA = EngineConfig(dtype="float32", matmul_backend="xla", attention_backend="xla")
NATIVE = EngineConfig(matmul_backend="native", attention_backend="native")
FILES = {
    "F32": lambda name: Kind.F32,
    "Q4_1": lambda name: Kind.Q8_0 if name == "token_embd" else Kind.Q4_1,
    "Q8_0": lambda name: Kind.Q8_0,
    "Q4_K and Q6_K": lambda name: Kind.Q6_K if name in ("attn_v", "ffn_down", "output") else Kind.Q4_K,
    "Q5_K and Q8_0": lambda name: Kind.Q8_0 if name in ("attn_q", "ffn_up") else Kind.Q5_K,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Writes a model file with named formats, and computes its logits in float32 through XLA."""
    folder, made = tmp_path_factory.mktemp("models"), {}

    def model(name):
        if name not in made:
            path = write_random_model(folder / f"{len(made)}.gguf", FILES[name])
            made[name] = path, ForwardSteps.load(path, XLA, QUICK_TO_COMPILE).logits(sequences(), num_decoded=3)
        return made[name]

    return model


def sequences(count=3, longest=180):
    random = np.random.default_rng(count)
    return [random.integers(0, VOCAB_SIZE, length).tolist() for length in random.integers(6, longest, count)]


def error_of(logits, expected):
    """The relative root mean square error."""
    assert np.isfinite(logits).all()
    return np.sqrt(((logits - expected) ** 2).mean() / (expected**2).mean())


@pytest.mark.parametrize(
    ("file", "change", "bound"),
    [
        ("F32", {"dtype": "float32"}, 1e-5),
        ("Q4_K and Q6_K", {"dtype": "float32"}, 1e-5),
        ("F32", {"dtype": "float32", "matmul_backend": "xla"}, 1e-5),
        ("F32", {"dtype": "float32", "attention_backend": "xla"}, 1e-5),
        ("F32", {"dtype": "bfloat16"}, 2e-2),
        ("F32", {"dtype": "bfloat16", "matmul_backend": "xla"}, 2e-2),
        ("F32", {"dtype": "bfloat16", "attention_backend": "xla"}, 2e-2),
        ("F32", {"dtype": "bfloat16", "matmul_backend": "xla", "attention_backend": "xla"}, 2e-2),
        ("F32", {}, 2e-2),
        ("F32", {"quantize": "int8"}, 6e-2),
        ("F32", {"quantize": "int4"}, 0.6),
        ("Q8_0", {}, 4e-2),
        ("Q8_0", {"kv_cache_dtype": "int8"}, 4e-2),
        ("Q4_K and Q6_K", {"dtype": "bfloat16"}, 4e-2),
        ("Q4_1", {}, 4e-2),
        ("Q4_K and Q6_K", {}, 6e-2),
        ("Q5_K and Q8_0", {}, 4e-2),
    ],
    ids=str,
)
def test_logits_are_near_those_of_the_exact_weights(model, file, change, bound):
    path, exact = model(file)
    steps = ForwardSteps.load(path, dataclasses.replace(NATIVE, **change), QUICK_TO_COMPILE)
    assert error_of(steps.logits(sequences(), num_decoded=3), exact) < bound


def unpacked(params):
    """The same weights as arrays for XLA, in float32."""

    matrices = {name: unpack_layers(params[name]) for name in ("qkv", "attention_output", "down")}
    matrices["gate_up"] = unpack_layers(params["gate_up"], is_gated=True)
    return (
        params
        | {name: np.swapaxes(matrix, 1, 2) for name, matrix in matrices.items()}
        | {name: unpack_layers(params[name])[0] for name in ("embedding", "output")}
    )


@pytest.mark.parametrize("file", ["F32", "Q4_K and Q6_K"])
def test_rounded_weights_compute_what_they_represent(model, file):
    """The error without that of rounding the weights; the rest is due to activations and pages."""
    path, _ = model(file)
    config = dataclasses.replace(NATIVE, quantize="int4")
    native = ForwardSteps.load(path, config, QUICK_TO_COMPILE)
    assert isinstance(native.params["gate_up"], PackedMatrix)
    exact = ForwardSteps(unpacked(native.params), native.model, Backends(XLA_BACKEND, XLA_BACKEND, ""), "float32")
    assert error_of(native.logits(sequences(), num_decoded=3), exact.logits(sequences(), num_decoded=3)) < 4e-2


CONFIGURATIONS = [
    ("F32", {"dtype": "float32"}),
    ("F32", {"dtype": "bfloat16", "kv_cache_dtype": "int8"}),
    ("Q4_1", {}),
    ("Q5_K and Q8_0", {}),
]


@pytest.mark.parametrize(("file", "change"), CONFIGURATIONS, ids=str)
def test_logits_are_the_same_bits_in_every_batch_and_chunk(model, file, change):
    steps = ForwardSteps.load(model(file)[0], dataclasses.replace(NATIVE, **change), QUICK_TO_COMPILE)
    target = np.random.default_rng(9).integers(0, VOCAB_SIZE, 140).tolist()
    alone = steps.logits([target], num_decoded=4)
    for chunk in (1, 32, 100):
        assert np.array_equal(steps.logits([target], num_decoded=4, chunk=chunk), alone), f"in chunks of {chunk}"
    for size in (3, 16, 64):
        others = sequences(size - 1, longest=64)
        batch = [*others[: size // 2], target, *others[size // 2 :]]
        together = steps.logits(batch, num_decoded=4)
        assert np.array_equal(together[size // 2], alone[0]), f"in a batch of {size}"
