"""Weights by formula, the same wherever they are made, so that none need to be stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tests.golden.tiny_llama import noise

# Norms that multiply by 1 + weight have weights around 0, those of all other models around 1.
_NORMS_AROUND_ZERO = ("GemmaFor", "Gemma2", "Gemma3For", "Gemma3Text", "NemotronFor", "Qwen3Next", "Qwen3_5")
# What other vectors lie around: of recurrent layers, so that a state remembers some 50 tokens.
_CENTRES = {"linear_attn.norm.weight": 1.0, ".A_log": 0.0, ".dt_bias": -4.0, ".dt_proj.bias": -4.0}
# Bounds of products, which cut off some of their inputs and outputs.
_CENTRES |= {".input_min": -1.5, ".input_max": 1.5, ".output_min": -1.0, ".output_max": 1.0}


def tiny_weights(architecture: str, shapes: Mapping[str, Sequence[int]], seed: int) -> dict[str, np.ndarray]:
    """float32 tensors by their names in a folder: evenly spread over [-1/4, 1/4), norms over [3/4, 5/4).

    Args:
        architecture: transformers' class.
    """
    of_norms = 0.0 if architecture.startswith(_NORMS_AROUND_ZERO) else 1.0

    def centre(name: str) -> float:
        for ending, value in _CENTRES.items():
            if name.endswith(ending):
                return value
        return of_norms if len(shapes[name]) == 1 and not name.endswith("bias") else 0.0

    return {
        name: np.asarray(noise(seed * len(shapes) + index, tuple(shapes[name])) / 4 + np.float32(centre(name)))
        for index, name in enumerate(sorted(shapes))
    }


def tiny_prompt(length: int, vocab_size: int) -> list[int]:
    """Token ids without a pattern that a model could see."""
    return ((noise(length, (length,)) + 1) / 2 * vocab_size).astype(int).tolist()
