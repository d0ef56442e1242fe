"""Compares what convert.py wrote: each folder with its GGUF file, by configuration, weights, logits and greedy tokens.

    python -m tests.golden.architectures.compare FOLDER

Exits with status 1 where one of them differs, or cannot be opened.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from engine.interface.config import EngineConfig
from tests.engine.models.same_model import assert_same_model
from tests.forward_steps import ForwardSteps
from tests.golden.architectures.configs import CONFIGS, PROMPT_LENGTHS, PROMPT_LENGTHS_OF, VOCAB_SIZE
from tests.golden.architectures.tiny_weights import tiny_prompt

NUM_OUTPUT_TOKENS = 8
CONTEXTS = {"phi3_short": 128}  # tokens; the models that compute longer contexts in another way


def compare(name: str, folder: Path) -> str:
    """Returns what was compared.

    Raises:
        AssertionError: the two differ.
    """
    pair = folder / name, folder / f"{name}.gguf"
    context_length = CONTEXTS.get(name, 512)
    assert_same_model(*pair, context_length)
    lengths = PROMPT_LENGTHS_OF.get(name, PROMPT_LENGTHS)
    first, second = (greedy(path, context_length, lengths) for path in pair)
    np.testing.assert_allclose(first[1], second[1], rtol=0, atol=1e-5)
    assert first[0] == second[0]
    difference = np.abs(first[1] - second[1]).max()
    return f"{len(lengths)} prompts of {NUM_OUTPUT_TOKENS} tokens, logits up to {difference:.1e} apart"


def greedy(path: Path, context_length: int, lengths: tuple[int, ...]) -> tuple[list[list[int]], np.ndarray]:
    """The output tokens of each prompt, and the logits of all of them."""
    backend = "native"
    config = EngineConfig(
        dtype="float32", matmul_backend=backend, attention_backend=backend, max_model_len=context_length
    )
    steps = ForwardSteps.load(path, config)
    sequences = [tiny_prompt(length, VOCAB_SIZE) for length in lengths]
    logits = []
    for _ in range(NUM_OUTPUT_TOKENS):
        rows = steps.logits(sequences)[:, -1]
        logits.append(rows)
        for sequence, row in zip(sequences, rows, strict=True):
            sequence.append(int(row.argmax()))
    return [sequence[-NUM_OUTPUT_TOKENS:] for sequence in sequences], np.array(logits)


def main() -> int:
    folder = Path(sys.argv[1])
    num_failed = 0
    for name in CONFIGS:
        if not (folder / f"{name}.gguf").exists():
            continue
        try:
            print(f"{name}: the same; {compare(name, folder)}", flush=True)
        except Exception as error:  # noqa: BLE001 - the next one may be the same
            num_failed += 1
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
