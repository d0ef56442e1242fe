"""Makes the JSON files of this folder: what transformers computes for the tiny models of configs.py.

In a virtual environment of its own, never in the project's:

    python -m venv goldenv
    goldenv/bin/pip install torch==2.13.0
    goldenv/bin/pip install transformers
    goldenv/bin/python -m tests.golden.architectures.make [NAME...]

Each model is saved to a folder, filled with the weights of tiny_weights.py and read back, so that the tensors have
the names and shapes that checkpoints have. Of several seeds for the weights, the first is taken with which no greedy
token is nearly tied with another.
"""

# mypy: disable-error-code="import-not-found"
# What is imported here is installed in another virtual environment.

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file

from tests.golden.architectures.configs import ATTENTION_OF, CONFIGS, PROMPT_LENGTHS, PROMPT_LENGTHS_OF, VOCAB_SIZE
from tests.golden.architectures.stand_ins import STAND_INS
from tests.golden.architectures.tiny_weights import tiny_prompt, tiny_weights

HERE = Path(__file__).parent
NUM_OUTPUT_TOKENS = 12
NUM_LOGITS = 2  # of each prompt: at its last token, and at the output tokens behind it
LEAST_GAP = 0.01  # between the two best logits
LEAST_DIFFERENT = 4  # output tokens of each prompt
NUM_SEEDS = 100
FILE = "model.safetensors"
NOT_OF_THE_MODEL = ("transformers_version", "dtype", "torch_dtype", "use_cache")


def make(name: str) -> None:
    """Makes one file."""
    class_name, arguments = CONFIGS[name]
    stand_in = STAND_INS.get(class_name)
    with tempfile.TemporaryDirectory() as folder:
        if stand_in is None:
            shapes, config = write_untrained(class_name, arguments, Path(folder))
        else:
            config = {"architectures": [class_name], "model_type": stand_in.model_type, **arguments}
            shapes = stand_in.shapes(config)
        for seed in range(NUM_SEEDS):
            weights = tiny_weights(class_name, shapes, seed)
            tensors = {tensor: torch.from_numpy(values) for tensor, values in weights.items()}
            if stand_in is None:
                save_file(tensors, f"{folder}/{FILE}", metadata={"format": "pt"})
                model_class = getattr(transformers, class_name)
                attention = ATTENTION_OF.get(name, "eager")
                model = model_class.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention).eval()
            else:
                model = stand_in.load(tensors, config, Path(folder))
            entries = [outputs(model, length) for length in PROMPT_LENGTHS_OF.get(name, PROMPT_LENGTHS)]
            if all(entries):
                break
        else:
            raise SystemExit(f"{name}: every seed has near-ties")
    content = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "config": {key: value for key, value in config.items() if key not in NOT_OF_THE_MODEL},
        "seed": seed,
        "shapes": shapes,
    }
    header = "".join(f"{json.dumps(key)}: {json.dumps(value)},\n" for key, value in content.items())
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    (HERE / f"{name}.json").write_text(f'{{\n{header}"prompts": [\n{lines}\n]\n}}\n', encoding="utf-8")
    largest = max(abs(value) for entry in entries for row in entry["logits"] for value in row)
    print(f"{name}: seed {seed}, smallest gap {min(entry['least_gap'] for entry in entries)}, logits up to {largest}")


def write_untrained(
    class_name: str, arguments: dict[str, Any], folder: Path
) -> tuple[dict[str, list[int]], dict[str, Any]]:
    """Saves a model of transformers; returns the shapes of its tensors, and its config.json."""
    model_class = getattr(transformers, class_name)
    model_class(model_class.config_class(**arguments)).save_pretrained(folder)
    with safe_open(folder / FILE, "pt") as stored:
        shapes = {tensor: list(stored.get_slice(tensor).get_shape()) for tensor in sorted(stored.keys())}
    return shapes, json.loads((folder / "config.json").read_text(encoding="utf-8"))


def outputs(model: Any, prompt_length: int) -> dict[str, Any]:
    """Greedy tokens of a prompt and the first logits; empty where the outputs are no good test."""
    prompt = tiny_prompt(prompt_length, VOCAB_SIZE)
    token_ids, logits, gaps = list(prompt), [], []
    for _ in range(NUM_OUTPUT_TOKENS):
        with torch.inference_mode():
            row = model(input_ids=torch.tensor([token_ids]), use_cache=False).logits[0, -1]
        best, second = torch.topk(row, 2).values.tolist()
        gaps.append(best - second)
        logits.append([round(value, 5) for value in row.tolist()])
        token_ids.append(int(row.argmax()))
    output_token_ids = token_ids[len(prompt) :]
    if min(gaps) < LEAST_GAP or len(set(output_token_ids)) < LEAST_DIFFERENT:
        return {}
    return {
        "prompt_token_ids": prompt,
        "output_token_ids": output_token_ids,
        "least_gap": round(min(gaps), 5),
        "logits": logits[:NUM_LOGITS],
    }


def main() -> None:
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    for name in sys.argv[1:] or CONFIGS:
        make(name)


if __name__ == "__main__":
    main()
