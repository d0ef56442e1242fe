"""Keys in pages of int8 lie without the biases that they have in common, which no softmax sees."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from engine.backends.base.backend import Backend
from engine.backends.base.operands import AttentionConstants, Norm
from engine.interface.config import EngineConfig
from engine.models.parts.key_bias import has_common_bias, without_common_bias
from engine.models.parts.rotary import NO_ROTARY, Rotary, rotary_frequencies, rotated, rotation_tables
from engine.step.shapes import StepShape
from tests.forward_steps import QUICK_TO_COMPILE, ForwardSteps
from tests.golden.architectures.tiny_weights import tiny_prompt, tiny_weights

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[3] / "golden" / "architectures" / "qwen2.json").read_text(encoding="utf-8")
)
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 4, 2, 32
SLOW = (7, 15)  # features of the golden's heads that are rotated together, by 0.0006 radians a position


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose keys have biases that are far larger than the rest of them."""
    path = tmp_path_factory.mktemp("qwen2")
    weights = tiny_weights("Qwen2ForCausalLM", GOLDEN["shapes"], GOLDEN["seed"])
    for name, values in weights.items():
        if name.endswith("k_proj.bias"):
            values.reshape(2, 16)[:, SLOW] = [[60.0, -40.0], [-50.0, 70.0]]
    (path / "config.json").write_text(json.dumps(GOLDEN["config"]), encoding="utf-8")
    save_file(weights, path / "model.safetensors")
    return path


def steps_with(folder: Path, backend: str, kv_cache_dtype: str) -> ForwardSteps:
    config = EngineConfig(
        dtype="float32", matmul_backend=backend, attention_backend=backend, kv_cache_dtype=kv_cache_dtype
    )
    return ForwardSteps.load(folder, config, QUICK_TO_COMPILE)


def test_large_biases_of_keys_take_no_bits_of_int8(folder: Path, backend: Backend) -> None:
    """As they lie, a step of int8 would be half as long as what tells keys from each other."""
    sequences = [tiny_prompt(length, 256) for length in (70, 150)]
    exact, rounded = (
        steps_with(folder, backend.name, kind).logits(sequences, num_decoded=3, chunk=48)
        for kind in ("float32", "int8")
    )
    error = np.sqrt(((rounded - exact) ** 2).mean() / (exact**2).mean())
    assert error < 0.05


def test_a_sequence_has_the_same_bits_alone_and_in_company(folder: Path, native: str) -> None:
    steps = steps_with(folder, "native", "int8")
    sequences = [tiny_prompt(length, 256) for length in (70, 45, 131)]
    together = steps.logits(sequences, num_decoded=3, chunk=48, shape=StepShape(4, 4), waits=False)
    alone = steps.logits(sequences[-1:], num_decoded=3, chunk=33, shape=StepShape(1, 1))
    np.testing.assert_array_equal(alone[0], together[-1])


@pytest.mark.parametrize(("table", "other"), [(-1, 0), (-1, -1), (0, 0), (1, 0), (1, -1)])
def test_all_rotated_keys_of_a_head_change_by_the_same_vector(table: int, other: int) -> None:
    """At any positions: in no order, and far behind those over which is averaged. Rotations may be longer than 1."""
    random = np.random.default_rng(0)
    frequencies = (rotary_frequencies(16, theta) for theta in (1e4, 1e6))
    rotary = tuple(Rotary(tuple(each.tolist()), length) for each, length in zip(frequencies, (1.0, 1.3), strict=True))
    positions = jnp.asarray(random.integers(0, 30_000, 11), jnp.int32)
    constants = constants_of(rotary, positions, table, other)
    width = (NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM
    qkv, biases = (jnp.asarray(random.normal(size=(n, width)), jnp.float32) for n in (11, 2))
    less = without_common_bias(qkv, biases, NUM_KV_HEADS, jnp.int32(1), constants, rotary)

    heads = np.asarray(less - qkv).reshape(11, -1, HEAD_DIM)
    assert not heads[:, :NUM_HEADS].any(), "queries changed"
    assert not heads[:, NUM_HEADS + NUM_KV_HEADS :].any(), "values changed"
    change = jnp.asarray(heads[:, NUM_HEADS : NUM_HEADS + NUM_KV_HEADS])
    if table >= 0:
        change = rotated(change, constants.rotations[table])
    np.testing.assert_allclose(change, np.broadcast_to(change[:1], change.shape), rtol=0, atol=2e-6)
    own = np.asarray(biases)[1].reshape(-1, HEAD_DIM)[NUM_HEADS : NUM_HEADS + NUM_KV_HEADS]
    is_kept = np.arange(HEAD_DIM) >= (0 if table < 0 else 16)
    np.testing.assert_allclose(change[0][:, is_kept], -own[:, is_kept], rtol=0, atol=1e-6)


@pytest.mark.parametrize("rotary", [(), (NO_ROTARY,)])
def test_biases_of_a_model_without_rotations_are_taken_whole(rotary: tuple[Rotary, ...]) -> None:
    constants = constants_of(rotary, jnp.arange(3, dtype=jnp.int32), -1)
    biases = jnp.arange(2 * 256, dtype=jnp.float32).reshape(2, 256)
    less = without_common_bias(jnp.zeros((3, 256)), biases, NUM_KV_HEADS, jnp.int32(1), constants, rotary)
    expected = np.zeros((3, 256), np.float32)
    expected[:, 128:192] = -np.asarray(biases)[1, 128:192]
    np.testing.assert_array_equal(less, expected)


def test_what_is_taken_from_bfloat16_is_not_rounded_before() -> None:
    constants = constants_of((), jnp.arange(3, dtype=jnp.int32), -1)
    biases = jnp.full((2, 256), 100.3, jnp.float32)
    qkv = jnp.full((3, 256), 100.5, jnp.bfloat16)  # as it would round the bias
    less = without_common_bias(qkv, biases, NUM_KV_HEADS, jnp.int32(1), constants, ())
    assert less.dtype == jnp.bfloat16
    np.testing.assert_allclose(less[:, 128:192].astype(jnp.float32), 0.2, rtol=0.01)


@pytest.mark.parametrize(
    "changes",
    [{"softcap": 30.0}, {"sinks": jnp.zeros((2, NUM_HEADS))}, {"k_norm": Norm(jnp.ones((2, HEAD_DIM)), 1e-6)}],
    ids=["soft cap", "sinks", "norm"],
)
def test_biases_stay_where_attention_would_see_that_they_are_gone(changes: dict[str, Any]) -> None:
    constants = constants_of((), jnp.arange(3, dtype=jnp.int32), -1)
    assert has_common_bias(constants)
    assert not has_common_bias(replace(constants, **changes))


def constants_of(rotary: tuple[Rotary, ...], positions: jnp.ndarray, table: int, other: int = -1) -> AttentionConstants:
    """Of two layers, the second of which rotates by the table."""
    return AttentionConstants(
        num_heads=NUM_HEADS, scale=1.0, rotations=rotation_tables(positions, rotary),
        tables=np.array([other, table], np.int32), windows=np.zeros(2, np.int32),
    )  # fmt: skip
