"""Mixtures of experts, by each backend, against plain float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from engine.backends.base.backend import Backend
from engine.backends.base.operands import Activation, Clamp, ExpertBiases, Picks
from engine.backends.base.token_layout import token_layout
from engine.weights.formats.model_folder import ModelFolder
from engine.weights.formats.safetensors_files import SafetensorsFiles
from engine.weights.layout import Precision
from engine.weights.leaf import Leaf, LeafKind, Part, Stored
from engine.weights.loader import LeafTensors, load_weights

NUM_LAYERS, NUM_EXPERTS, NUM_PICKED, HIDDEN, INNER, LAYER, TILE = 2, 5, 2, 32, 64, 1, 8
UNPICKED = 2  # the expert that nobody picks
# Two decode rows, of which one is padding, and two tiles, of which one is full.
ROWS = np.array([[4, 1, 0, 0], [0, 0, 0, 0], [0, TILE, 0, 0], [0, 3, 0, 0]], np.int32)
REAL = [0, *range(2, 2 + TILE), *range(2 + TILE, 5 + TILE)]
NUM_TOKENS = 2 + 2 * TILE
ACTIVATIONS = {
    Activation.SILU: lambda x: x / (1 + np.exp(-x)),
    Activation.GELU_TANH: lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    Activation.RELU: lambda x: np.maximum(x, 0),
    Activation.RELU_SQUARED: lambda x: np.maximum(x, 0) ** 2,
    Activation.QUICK_GELU: lambda x: x / (1 + np.exp(-1.702 * x)),
}


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)

    def weights(outputs: int, inputs: int) -> np.ndarray:
        shape = (NUM_LAYERS * NUM_EXPERTS, outputs, inputs)
        values = (random.standard_normal(shape) / np.sqrt(inputs)).astype(np.float32)
        values[LAYER * NUM_EXPERTS + UNPICKED] = np.nan  # which would show where it is read
        return values

    picked = [expert for expert in range(NUM_EXPERTS) if expert != UNPICKED]
    x = random.standard_normal((NUM_TOKENS, HIDDEN)).astype(np.float32)
    experts = np.stack([random.permutation(picked)[:NUM_PICKED] for _ in range(NUM_TOKENS)]).astype(np.int32)
    padding = np.setdiff1d(np.arange(NUM_TOKENS), REAL)
    x[padding] = np.nan
    experts[padding] = UNPICKED
    return {
        "gate": weights(INNER, HIDDEN), "up": weights(INNER, HIDDEN), "down": weights(HIDDEN, INNER),
        "x": x, "addend": random.standard_normal((NUM_TOKENS, HIDDEN)).astype(np.float32), "experts": experts,
        "shares": random.uniform(0.1, 1, (NUM_TOKENS, NUM_PICKED)).astype(np.float32),
    }  # fmt: skip


@pytest.fixture
def leaves(backend: Backend, arrays: dict[str, np.ndarray], tmp_path: Path) -> dict[str, Any]:
    """The stacks of gates and ups, of ups alone, and of downs, as the backend has them."""
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    shapes = {name: arrays[name].shape[1:] for name in ("gate", "up", "down")}
    save_file(
        {
            f"{name}.{place // NUM_EXPERTS}.{place % NUM_EXPERTS}": arrays[name][place]
            for name in shapes
            for place in range(NUM_LAYERS * NUM_EXPERTS)
        },
        tmp_path / "model.safetensors",
    )
    parts = {
        name: Part(shape, {"safetensors": Stored(f"{name}.{{layer}}.{{expert}}")}) for name, shape in shapes.items()
    }
    declared = [
        Leaf("gate_up", LeafKind.GATED, (parts["gate"], parts["up"]), num_experts=NUM_EXPERTS),
        Leaf("up", LeafKind.MATRIX, (parts["up"],), num_experts=NUM_EXPERTS),
        Leaf("down", LeafKind.MATRIX, (parts["down"],), num_experts=NUM_EXPERTS),
    ]
    tensors = LeafTensors(declared, NUM_LAYERS, SafetensorsFiles(ModelFolder(tmp_path)), "safetensors")
    return load_weights(tensors, backend.weights, Precision("float32", None), lambda *step: None).params


@pytest.mark.parametrize("clamp", [Clamp(alpha=2.5, limit=0.75), Clamp(alpha=None, limit=0.25)])
def test_biases_are_added_and_a_clamp_stands_for_the_activation(
    backend: Backend, arrays: dict[str, np.ndarray], leaves: dict[str, Any], clamp: Clamp
) -> None:
    random = np.random.default_rng(1)
    gate_up_bias, down_bias = (
        random.standard_normal((NUM_LAYERS * NUM_EXPERTS, size)).astype(np.float32) for size in (2 * INNER, HIDDEN)
    )

    @jax.jit
    def added(addend: jax.Array, x: jax.Array, gate_up: Any, down: Any, biases: Any, picked: Any) -> jax.Array:
        return backend.products.add_experts(
            addend, x, gate_up, down, Picks(*picked, NUM_EXPERTS), jnp.int32(LAYER), layout(),
            activation=Activation.SILU, clamp=clamp, biases=ExpertBiases(*biases),
        )  # fmt: skip

    picked = arrays["experts"], arrays["shares"]
    biases = gate_up_bias, down_bias
    got = np.asarray(added(arrays["addend"], arrays["x"], leaves["gate_up"], leaves["down"], biases, picked))
    for token in REAL:
        x, expected = arrays["x"][token].astype(np.float64), arrays["addend"][token].astype(np.float64)
        for share, expert in zip(arrays["shares"][token], arrays["experts"][token], strict=True):
            place = LAYER * NUM_EXPERTS + expert
            gate = arrays["gate"][place] @ x + gate_up_bias[place, :INNER]
            up = np.clip(arrays["up"][place] @ x + gate_up_bias[place, INNER:], -clamp.limit, clamp.limit)
            if clamp.alpha is None:
                inner = up * np.minimum(gate / (1 + np.exp(-gate)), clamp.limit)
            else:
                gate = np.minimum(gate, clamp.limit)
                inner = (up + 1) * gate / (1 + np.exp(-clamp.alpha * gate))
            expected += share * (arrays["down"][place] @ inner + down_bias[place])
        np.testing.assert_allclose(got[token], expected, rtol=1e-4, atol=1e-5)


def layout() -> Any:
    table = 1 + np.arange(len(ROWS), dtype=np.int32)[:, None].repeat(8, axis=1)
    return token_layout(ROWS, table, num_tiles=2, tile_size=TILE, page_size=16)


@pytest.mark.parametrize(
    ("activation", "is_gated"),
    [(Activation.SILU, True), (Activation.GELU_TANH, True), (Activation.RELU, True), (Activation.RELU_SQUARED, False)],
)
def test_the_experts_that_a_token_picks_are_added_by_their_shares(
    backend: Backend, arrays: dict[str, np.ndarray], leaves: dict[str, Any], activation: Activation, is_gated: bool
) -> None:
    @jax.jit
    def added(addend: jax.Array, x: jax.Array, gate_up: Any, down: Any, experts: jax.Array, shares: Any) -> jax.Array:
        picks = Picks(experts, shares, NUM_EXPERTS)
        return backend.products.add_experts(
            addend, x, gate_up, down, picks, jnp.int32(LAYER), layout(), activation=activation, is_gated=is_gated
        )

    up = leaves["gate_up" if is_gated else "up"]
    got = np.asarray(
        added(arrays["addend"], arrays["x"], up, leaves["down"], arrays["experts"], arrays["shares"])
    )  # fmt: skip
    for token in REAL:
        x, expected = arrays["x"][token].astype(np.float64), arrays["addend"][token].astype(np.float64)
        for share, expert in zip(arrays["shares"][token], arrays["experts"][token], strict=True):
            place = LAYER * NUM_EXPERTS + expert
            inner = arrays["up"][place] @ x
            if is_gated:
                inner = ACTIVATIONS[activation](arrays["gate"][place] @ x) * inner
            else:
                inner = ACTIVATIONS[activation](inner)
            expected += share * (arrays["down"][place] @ inner)
        np.testing.assert_allclose(got[token], expected, rtol=1e-4, atol=1e-5)
