"""Makes tiny_llama.json: greedy outputs of the tiny Llama of tiny_llama.py, by PyTorch and transformers.

In a virtual environment of its own, never in the project's:

    python -m venv goldenv
    goldenv/bin/pip install torch==2.13.0
    goldenv/bin/pip install transformers
    goldenv/bin/python tests/golden/make_tiny_llama.py
"""

# mypy: disable-error-code="import-not-found"
# What is imported here is installed in another virtual environment.

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
import transformers
from tiny_llama import CONFIG, PROMPTS, weights
from transformers import LlamaConfig, LlamaForCausalLM

PATH = Path(__file__).parent / "tiny_llama.json"
NUM_OUTPUT_TOKENS = 32


def make_model() -> LlamaForCausalLM:
    model = LlamaForCausalLM(LlamaConfig(**CONFIG, attn_implementation="eager", dtype=torch.float32)).eval()
    model.load_state_dict({name: torch.from_numpy(values) for name, values in weights(CONFIG).items()}, strict=True)
    return model


def generate_greedily(model: LlamaForCausalLM, prompt_token_ids: Sequence[int]) -> tuple[list[int], list[float]]:
    """Output token ids, and for each the gap between the two best logits."""
    token_ids = list(prompt_token_ids)
    gaps: list[float] = []
    for _ in range(NUM_OUTPUT_TOKENS):
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([token_ids])).logits[0, -1]
        best, second = torch.topk(logits, 2).values.tolist()
        token_ids.append(int(logits.argmax()))
        gaps.append(round(best - second, 6))
    return token_ids[len(prompt_token_ids) :], gaps


def main() -> None:
    torch.set_num_threads(1)
    model = make_model()
    entries = []
    for prompt in PROMPTS:
        output_token_ids, gaps = generate_greedily(model, prompt)
        print(f"{len(prompt)} prompt tokens, {len(set(output_token_ids))} different ones out, smallest gap {min(gaps)}")
        entries.append({"prompt_token_ids": prompt, "output_token_ids": output_token_ids, "logit_gaps": gaps})
    content = {"torch": torch.__version__, "transformers": transformers.__version__}
    lines = ",\n".join("  " + json.dumps(entry) for entry in entries)
    header = "".join(f"{json.dumps(name)}: {json.dumps(value)},\n" for name, value in content.items())
    PATH.write_text(f'{{\n{header}"prompts": [\n{lines}\n]\n}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
