"""The forward pass with adapters beside that of models in which they are merged, in float32."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from engine.adapters.adapted_products import with_adapters
from engine.adapters.adapter_stacks import AdapterStacks
from engine.adapters.targets import targets_of
from engine.backends.backends import choose_backends, kv_dtype
from engine.interface.config import AdapterLimits, EngineConfig
from engine.interface.types import AdapterChoice
from engine.models.open_model import open_model
from engine.step.shapes import StepShape
from engine.weights.layout import Params, Precision
from tests.engine.adapters.peft_adapters import ALL, merged, pairs_of, write_adapter
from tests.engine.models.test_architectures import GOLDENS, tensors_of
from tests.forward_steps import QUICK_TO_COMPILE, ForwardSteps
from tests.thoroughness import IS_FULL

SHAPE = StepShape(4, 4)
NUM_DECODED = 3
# Queries, keys and values in one tensor, norms behind the blocks, products side by side, experts beside attention.
MODELS = {
    "llama": ALL,
    "phi3": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
    "gemma3": ALL,
    "phi2": ("q_proj", "k_proj", "v_proj", "dense", "fc1", "fc2"),
    "qwen3_moe": ("q_proj", "k_proj", "v_proj", "o_proj"),
}
QUICK = (("llama", "native"), ("llama", "xla"), ("phi3", "native"), ("gemma3", "native"))
EVERY = [(name, backend) for name in MODELS for backend in ("native", "xla")] if IS_FULL else QUICK


@dataclass
class Adapted:
    """A model with two slots for adapters, of which the second one is taken."""

    steps: ForwardSteps
    merged: Params
    weights: Params  # without pairs
    config: EngineConfig


def sequences_of(name: str) -> list[list[int]]:
    """Two prompts, each with the tokens that are decoded."""
    prompts = GOLDENS[name]["prompts"][-2:]
    return [prompt["prompt_token_ids"] + prompt["output_token_ids"][:NUM_DECODED] for prompt in prompts]


def make(root: Path, name: str, backend: str) -> Adapted:
    golden, folder = GOLDENS[name], root / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(golden["config"]), encoding="utf-8")
    save_file(tensors_of(golden), folder / "model.safetensors")
    pairs = pairs_of(folder, MODELS[name], 4, seed=7)
    adapter = write_adapter(root / f"{name}-adapter", pairs, {"r": 4, "lora_alpha": 6})
    whole = merged(folder, root / f"{name}-merged", pairs, dict.fromkeys(MODELS[name], 1.5))
    config = EngineConfig(dtype="float32", matmul_backend=backend, attention_backend=backend)
    opened, precision = open_model(folder), Precision.of_engine(config)
    backends = choose_backends(config, opened.config)
    stacks = AdapterStacks(targets_of(opened.model), AdapterLimits(2, 4), backends.weights, precision, ("llama",))

    def loaded(path: Path) -> Params:
        return open_model(path).load(backends.weights, precision, lambda *step: None).params

    weights = loaded(folder)
    params = stacks.load(stacks.attach(weights), 1, stacks.read(adapter))
    steps = ForwardSteps(params, opened.model, with_adapters(backends), kv_dtype(config, backends), QUICK_TO_COMPILE)
    return Adapted(steps, stacks.attach(loaded(whole)), weights, config)


@pytest.mark.parametrize(("name", "backend_name"), EVERY)
def test_an_adapter_is_equal_to_merged_weights_in_any_company(
    tmp_path: Path, request: pytest.FixtureRequest, name: str, backend_name: str
) -> None:
    """Two prompts and their outputs, one with the adapter beside one without, in tiles and in decode rows."""
    if backend_name == "native":
        request.getfixturevalue("native")
    adapted = make(tmp_path, name, backend_name)
    steps, whole = adapted.steps, copy.copy(adapted.steps)
    whole.params = adapted.merged
    prompts = sequences_of(name)
    choice = AdapterChoice(1, "")
    options = {"num_decoded": NUM_DECODED, "chunk": 48, "shape": SHAPE, "waits": False}
    beside = steps.logits(prompts, adapters=[choice, None], **options)
    expected = whole.logits(prompts, **options)
    plain = steps.logits(prompts, **options)
    np.testing.assert_allclose(beside[0], expected[0], rtol=0, atol=1e-4)
    assert np.abs(beside[0] - plain[0]).max() > 0.1
    np.testing.assert_array_equal(beside[1], plain[1])
    if backend_name == "native":
        alone = steps.logits(prompts[:1], adapters=[choice], num_decoded=NUM_DECODED, chunk=33, shape=SHAPE)
        np.testing.assert_array_equal(alone[0], beside[0])
    nothing = steps.logits(prompts, adapters=[AdapterChoice(1, "", 0.0), AdapterChoice(0, "")], **options)
    np.testing.assert_array_equal(nothing, plain)


def test_rows_without_an_adapter_have_the_bits_of_a_model_without_adapters(tmp_path: Path, native: str) -> None:
    adapted = make(tmp_path, "llama", "native")
    backends = choose_backends(adapted.config, adapted.steps.model.config)
    plain = ForwardSteps(
        adapted.weights, adapted.steps.model, backends, kv_dtype(adapted.config, backends), QUICK_TO_COMPILE
    )
    sequences = sequences_of("llama")
    options = {"num_decoded": NUM_DECODED, "chunk": 48, "shape": SHAPE}
    beside = adapted.steps.logits(sequences, adapters=[None, AdapterChoice(1, "")], **options)
    np.testing.assert_array_equal(beside[0], plain.logits(sequences, **options)[0])
