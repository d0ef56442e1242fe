"""Makes the JSON files of this folder: what transformers computes of prompts with pictures, with tiny models.

In the virtual environment of tests/golden/architectures/make.py:

    goldenv/bin/python -m tests.golden.pictures.make
"""

# mypy: disable-error-code="import-not-found"
# What is imported here is installed in another virtual environment.

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

from tests.golden.architectures.configs import CONFIGS
from tests.golden.architectures.make import FILE, LEAST_DIFFERENT, LEAST_GAP, NOT_OF_THE_MODEL, write_untrained
from tests.golden.architectures.tiny_weights import tiny_prompt, tiny_weights
from tests.golden.pictures.tiny_pictures import tiny_picture

HERE = Path(__file__).parent
NUM_OUTPUT_TOKENS = 8
NUM_SEEDS = 100
IMAGE_SIZE, NUM_TOKENS, IMAGE_TOKEN = 64, 16, 252
# Each prompt: lengths of texts, and the seeds of the pictures between them.
PROMPTS = [[7, "a", 5], [0, "b", 3, "a", 40], [30, "c", 1, "d", 2, "c", 1], [70, "e", 30]]


def config_of() -> tuple[str, dict[str, Any]]:
    class_name, arguments = CONFIGS["gemma3_pictures"]
    vision = {**arguments["vision_config"], "image_size": IMAGE_SIZE, "num_hidden_layers": 2, "intermediate_size": 48}
    return class_name, {**arguments, "vision_config": vision, "mm_tokens_per_image": NUM_TOKENS}


def make() -> None:
    """Makes the file of Gemma 3, with weights whose greedy tokens are no near-ties."""
    class_name, arguments = config_of()
    model_class = getattr(transformers, class_name)
    with tempfile.TemporaryDirectory() as folder:
        shapes, config = write_untrained(class_name, arguments, Path(folder))
        for seed in range(NUM_SEEDS):
            tensors = {
                name: torch.from_numpy(values) for name, values in tiny_weights(class_name, shapes, seed).items()
            }
            save_file(tensors, f"{folder}/{FILE}", metadata={"format": "pt"})
            model = model_class.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
            entries = [outputs(model, prompt) for prompt in PROMPTS]
            if all(entries):
                break
        else:
            raise SystemExit("every seed has near-ties")
    content = {
        "transformers": transformers.__version__,
        "config": {key: value for key, value in config.items() if key not in NOT_OF_THE_MODEL},
        "seed": seed,
        "shapes": shapes,
        "prompts": entries,
    }
    (HERE / "gemma3.json").write_text(json.dumps(content) + "\n", encoding="utf-8")
    print(f"gemma3: seed {seed}, smallest gap {min(entry['least_gap'] for entry in entries)}")


def outputs(model: Any, parts: list[Any]) -> dict[str, Any]:
    """Greedy tokens of a prompt and the first logits; empty where the outputs are no good test."""
    prompt: list[int] = []
    for part in parts:
        prompt += [IMAGE_TOKEN] * NUM_TOKENS if isinstance(part, str) else tiny_prompt(part, 250)
    names = [part for part in parts if isinstance(part, str)]
    pixels = np.stack([tiny_picture(name, IMAGE_SIZE) for name in names]).transpose(0, 3, 1, 2)
    pixel_values = torch.from_numpy(pixels.astype(np.float32) / np.float32(127.5) - 1)
    token_ids, logits, gaps = list(prompt), [], []
    for _ in range(NUM_OUTPUT_TOKENS):
        ids = torch.tensor([token_ids])
        with torch.inference_mode():
            row = model(
                input_ids=ids, pixel_values=pixel_values, token_type_ids=(ids == IMAGE_TOKEN).long(), use_cache=False
            ).logits[0, -1]
        row = row.clone()
        best, second = torch.topk(row, 2).values.tolist()
        gaps.append(best - second)
        logits.append([round(value, 5) for value in row.tolist()])
        token_ids.append(int(row.argmax()))
    made = token_ids[len(prompt) :]
    if min(gaps) < LEAST_GAP or len(set(made)) < LEAST_DIFFERENT or IMAGE_TOKEN in made:
        return {}
    starts = [at for at, token in enumerate(prompt) if token == IMAGE_TOKEN]
    return {
        "prompt_token_ids": prompt,
        "pictures": list(zip(names, starts[::NUM_TOKENS], strict=True)),
        "output_token_ids": made,
        "least_gap": round(min(gaps), 5),
        "logits": logits[:2],
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    make()
