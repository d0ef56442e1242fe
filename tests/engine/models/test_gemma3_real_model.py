"""Gemma 3 270M from its file: its float32 logits choose the tokens of transformers on the same weights.

The file mixes formats within a leaf, and its longest prompt is longer than the window of local layers.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.interface.config import TILE_SIZE, EngineConfig
from engine.step.shapes import StepShape
from tests.forward_steps import ForwardSteps
from tests.thoroughness import IS_FULL, some

PATH = Path(__file__).parents[2] / "golden" / "gemma3_greedy.json"
GOLDENS = json.loads(PATH.read_text(encoding="utf-8"))["prompts"]
WINDOW = 512
LEAST_GAP = 1e-3  # between the two best logits of the reference, everywhere
NUM_TOKENS = 12  # of 64 in the file, because float32 takes its time


def wrong_tokens(path: Path, backend: str, names: list[str], num_tokens: int, shape: StepShape | None) -> list[str]:
    """The prompts of which a token is not the reference's, given those before."""
    goldens = [golden for golden in GOLDENS if golden["name"] in names]
    assert len(goldens) == len(names)
    steps = ForwardSteps.load(path, EngineConfig(dtype="float32", matmul_backend=backend, attention_backend=backend))
    sequences = [golden["prompt_token_ids"] + golden["output_token_ids"][: num_tokens - 1] for golden in goldens]
    logits = steps.logits(sequences, num_decoded=num_tokens - 1, chunk=2 * TILE_SIZE, shape=shape)
    return [
        golden["name"]
        for golden, chosen in zip(goldens, logits.argmax(axis=-1).tolist(), strict=True)
        if chosen != golden["output_token_ids"][:num_tokens]
    ]


def test_the_goldens_reach_beyond_the_window_and_have_no_ties() -> None:
    assert len(GOLDENS) == 30
    assert all(len(golden["output_token_ids"]) == 64 for golden in GOLDENS)
    assert min(min(golden["logit_gaps"]) for golden in GOLDENS) > LEAST_GAP
    assert max(len(golden["prompt_token_ids"]) for golden in GOLDENS) > WINDOW


@pytest.mark.usefixtures("native")
def test_native_kernels_choose_the_tokens_of_the_reference(gemma_path: Path) -> None:
    names = [golden["name"] for golden in GOLDENS if golden["name"] != "long"]
    assert wrong_tokens(gemma_path, "native", [*some(names, 3), "long"], NUM_TOKENS, None) == []


@pytest.mark.skipif(
    not IS_FULL, reason="tiny models of every architecture go through XLA; EAGRE_FULL=1 runs this one too"
)
def test_xla_chooses_the_tokens_of_the_reference(gemma_path: Path) -> None:
    assert wrong_tokens(gemma_path, "xla", ["long"], 4, StepShape(1, 2)) == []
