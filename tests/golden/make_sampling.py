"""Makes sampling.json: what the logits processors of Hugging Face transformers do to fixed random logits.

In the virtual environment of make_tiny_llama.py:

    goldenv/bin/python tests/golden/make_sampling.py

Parameters have the names of the project's, of which nothing is imported.
"""

# mypy: disable-error-code="import-not-found"
# What is imported here is installed in another virtual environment.

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

PATH = Path(__file__).parent / "sampling.json"
SEED = 20
NUM_ROWS, VOCAB_SIZE = 8, 64
NUM_OUTPUT_TOKENS = 24

Params = dict[str, Any]

BIAS = [[3, 2.5], [10, -4.0], [63, 1.25]]
BAD_WORDS = [[5], [1, 2], [1, 2, 7], [2, 2, 9], [4, 1, 2, 11]]

# Parameters, prompt and output.
CHANGES: list[tuple[Params, list[int], list[int]]] = [
    ({"repetition_penalty": 1.3}, [1, 2, 3, 3], [3, 4, 5, 5]),
    ({"repetition_penalty": 0.6}, [0, 63], [7]),
    ({"repetition_penalty": 5.0}, list(range(40)), []),
    ({"bad_words": BAD_WORDS}, [], [8, 1, 2]),
    ({"bad_words": BAD_WORDS}, [], [4, 1, 2]),
    ({"bad_words": BAD_WORDS}, [], [2, 2]),
    ({"bad_words": BAD_WORDS}, [], [1]),
    ({"min_tokens": 3, "stop_token_ids": [6, 20]}, [9, 9], [1, 2]),
    ({"min_tokens": 3, "stop_token_ids": [6, 20]}, [9, 9], [1, 2, 3]),
    ({"logit_bias": BIAS}, [1], [2]),
]

CUTS: list[Params] = [
    {"temperature": 0.7, "top_k": 5},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.5, "top_p": 0.8},
    {"temperature": 0.5, "top_p": 0.3},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 2.0, "min_p": 0.3},
    {"temperature": 1.0, "typical_p": 0.9},
    {"temperature": 1.8, "typical_p": 0.4},
    {"temperature": 0.6, "typical_p": 0.15},
    {"temperature": 1.4, "min_p": 0.02, "top_k": 20, "typical_p": 0.9, "top_p": 0.85},
    {"temperature": 1.9, "top_k": 30, "top_p": 0.6},
    {"temperature": 1.2, "typical_p": 0.7, "top_p": 0.7},
]

LOOPS: list[tuple[Params, list[int]]] = [
    ({"repetition_penalty": 1.4}, [1, 2, 3]),
    ({"repetition_penalty": 3.0}, [10, 20, 30, 40]),
    ({"repetition_penalty": 0.7}, []),
    ({"repetition_penalty": 1.2, "logit_bias": BIAS}, [3]),
    ({"bad_words": [[token] for token in range(0, 64, 3)], "logit_bias": BIAS}, []),
    ({"bad_words": [[24, 36], [24, 24], [29, 46, 46], [59, 29], [46]]}, []),
    ({"repetition_penalty": 1.3, "min_tokens": 12, "stop_token_ids": list(range(1, 64, 4))}, [5, 6]),
]


def processors(params: Params, prompt_length: int) -> LogitsProcessorList:
    """In the order in which the sampler applies them."""
    makers = {
        "logit_bias": lambda bias: SequenceBiasLogitsProcessor({(token,): value for token, value in bias}),
        "min_tokens": lambda count: MinNewTokensLengthLogitsProcessor(prompt_length, count, params["stop_token_ids"]),
        "bad_words": NoBadWordsLogitsProcessor,
        "repetition_penalty": RepetitionPenaltyLogitsProcessor,
        "temperature": TemperatureLogitsWarper,
        "min_p": MinPLogitsWarper,
        "top_k": TopKLogitsWarper,
        "typical_p": TypicalLogitsWarper,
        "top_p": TopPLogitsWarper,
    }
    chosen: list[LogitsProcessor] = [make(params[name]) for name, make in makers.items() if name in params]
    return LogitsProcessorList(chosen)


def process(logits: np.ndarray, params: Params, prompt: Sequence[int], output: Sequence[int]) -> list[float]:
    token_ids = torch.tensor([[*prompt, *output]], dtype=torch.long)
    scores: list[float] = processors(params, len(prompt))(token_ids, torch.from_numpy(logits)[None])[0].tolist()
    return scores


def changed(logits: np.ndarray, params: Params, prompt: list[int], output: list[int]) -> dict[str, Any]:
    scores = process(logits, params, prompt, output)
    kept = [round(score, 6) if math.isfinite(score) else None for score in scores]
    return {"params": params, "prompt": prompt, "output": output, "logits": kept}


def cut(logits: np.ndarray, params: Params) -> dict[str, Any]:
    kept = [token for token, score in enumerate(process(logits, params, [], [0])) if math.isfinite(score)]
    return {"params": params, "kept": kept}


def loop(rows: np.ndarray, params: Params, prompt: list[int]) -> dict[str, Any]:
    """Greedy output of logits that come round again, and the smallest gap between two best logits."""
    output: list[int] = []
    gap = math.inf
    for step in range(NUM_OUTPUT_TOKENS):
        scores = process(rows[step % len(rows)], params, prompt, output)
        best, second = sorted(scores)[:-3:-1]
        gap = min(gap, best - second)
        output.append(scores.index(best))
    return {"params": params, "prompt": prompt, "output": output, "gap": round(gap, 6)}


def main() -> None:
    rows = np.round(np.random.default_rng(SEED).standard_normal((NUM_ROWS, VOCAB_SIZE)) * 2.5, 3).astype(np.float32)
    content: dict[str, Any] = {
        "logits": [[round(value, 3) for value in row.tolist()] for row in rows],
        "changes": [changed(rows[index % NUM_ROWS], *change) for index, change in enumerate(CHANGES)],
        "cuts": [cut(rows[index % NUM_ROWS], params) for index, params in enumerate(CUTS)],
        "loops": [loop(rows, *case) for case in LOOPS],
    }
    header: dict[str, Any] = {"torch": torch.__version__, "transformers": transformers.__version__}
    parts = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in header.items()]
    for name, entries in content.items():
        lines = ",\n".join("  " + json.dumps(entry) for entry in entries)
        parts.append(f"{json.dumps(name)}: [\n{lines}\n]")
    PATH.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
    print(f"kept {[len(case['kept']) for case in content['cuts']]} of {VOCAB_SIZE} tokens")
    for case in content["loops"]:
        print(f"{case['params']}: {len(set(case['output']))} different tokens, smallest gap {case['gap']}")


if __name__ == "__main__":
    main()
