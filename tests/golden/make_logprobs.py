"""Makes `smollm2_logprobs.json`: log probabilities, and greedy outputs under processors of transformers.

Run it as make_goldens.py, whose model it uses:

    goldenv/bin/python tests/golden/make_logprobs.py MODEL.gguf

Reads the prompts of smollm2_greedy.json.
"""

# mypy: disable-error-code="import-not-found"
# What is imported here is installed in another virtual environment.

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from make_goldens import HERE, header_of, load_model, write
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

SCORED = ("story", "chat turns", "long")
STEERED = ("story", "chat turns")
NUM_BEST = 5
NUM_OUTPUT_TOKENS = 32


def score(model: Any, prompt_token_ids: Sequence[int]) -> dict[str, Any]:
    """Of each token but the first: its log probability and rank, and the best ones at its place."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([list(prompt_token_ids)])).logits[0, :-1].double()
    logprobs = torch.log_softmax(logits, dim=-1)
    following = torch.tensor(prompt_token_ids[1:])
    own = logprobs.gather(1, following[:, None])
    best = torch.topk(logprobs, NUM_BEST)
    return {
        "logprobs": [round(value, 7) for value in own[:, 0].tolist()],
        "ranks": (1 + (logprobs > own).sum(dim=1)).tolist(),
        "best_ids": best.indices.tolist(),
        "best_logprobs": [[round(value, 7) for value in row] for row in best.values.tolist()],
    }


def steer(model: Any, prompt_token_ids: Sequence[int], processor: LogitsProcessor) -> tuple[list[int], list[float]]:
    """Greedy output under a processor, and the gap between the two best logits at each step."""
    processors = LogitsProcessorList([processor])
    token_ids, output, gaps = list(prompt_token_ids), [], []
    cache, inputs = None, torch.tensor([token_ids])
    for _ in range(NUM_OUTPUT_TOKENS):
        with torch.inference_mode():
            result = model(input_ids=inputs, past_key_values=cache, use_cache=True)
        cache = result.past_key_values
        logits = processors(torch.tensor([token_ids]), result.logits[:, -1].clone())[0]
        best, second = torch.topk(logits, 2).values.tolist()
        token_ids.append(int(logits.argmax()))
        output.append(token_ids[-1])
        gaps.append(round(best - second, 6))
        inputs = torch.tensor([[token_ids[-1]]])
    return output, gaps


def processors(entry: dict[str, Any], eos_token_id: int) -> dict[str, tuple[dict[str, Any], LogitsProcessor]]:
    """By name: our parameters, and the processor that means the same."""
    plain = entry["output_token_ids"]
    biases = {plain[1]: -4.0, plain[3]: 3.5, plain[6]: -100.0}
    banned = [plain[0], plain[4]]
    return {
        "repetition_penalty": ({"repetition_penalty": 1.3}, RepetitionPenaltyLogitsProcessor(1.3)),
        "repetition_bonus": ({"repetition_penalty": 0.8}, RepetitionPenaltyLogitsProcessor(0.8)),
        "logit_bias": (
            {"logit_bias": list(biases.items())},
            SequenceBiasLogitsProcessor([[[token_id], bias] for token_id, bias in biases.items()]),
        ),
        "bad_words": ({"bad_words": [[token_id] for token_id in banned]}, SuppressTokensLogitsProcessor(banned)),
        "min_tokens": (
            {"min_tokens": NUM_OUTPUT_TOKENS},
            MinNewTokensLengthLogitsProcessor(len(entry["prompt_token_ids"]), NUM_OUTPUT_TOKENS, eos_token_id),
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=Path)
    gguf_path = parser.parse_args().gguf

    torch.set_num_threads(1)
    reader = GGUFReader(gguf_path)
    field = {name: value.contents() for name, value in reader.fields.items()}
    model = load_model(reader, field)
    goldens = {entry["name"]: entry for entry in json.loads((HERE / "smollm2_greedy.json").read_text())["prompts"]}

    entries: list[dict[str, Any]] = [
        {"kind": "scored", "name": name, **score(model, goldens[name]["prompt_token_ids"])} for name in SCORED
    ]
    for name in STEERED:
        for title, (params, processor) in processors(goldens[name], field["tokenizer.ggml.eos_token_id"]).items():
            output, gaps = steer(model, goldens[name]["prompt_token_ids"], processor)
            print(f"{name}, {title}: smallest gap {min(gaps)}")
            entries.append(
                {"kind": "steered", "name": name, "title": title, "params": params, "output": output, "gaps": gaps}
            )
    write(HERE / "smollm2_logprobs.json", header_of(gguf_path), "entries", entries)


if __name__ == "__main__":
    main()
