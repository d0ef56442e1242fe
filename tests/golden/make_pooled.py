"""Makes pooled.json: hidden states of tiny models of tests/golden/architectures, by PyTorch and transformers.

In the virtual environment of tests/golden/architectures/make.py:

    goldenv/bin/python -m tests.golden.make_pooled
"""

# mypy: disable-error-code="import-not-found"
# What is imported here is installed in another virtual environment.

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

from tests.golden.architectures.tiny_weights import tiny_weights

HERE = Path(__file__).parent
NAMES = ("mistral", "olmo2", "phi3_short", "gemma3", "qwen3_moe")


def pooled(name: str) -> list[dict[str, list[float]]]:
    """Of each prompt of a golden, the last token's state and the mean of all, after the last norm."""
    golden = json.loads((HERE / "architectures" / f"{name}.json").read_text(encoding="utf-8"))
    class_name = golden["config"]["architectures"][0]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(golden["config"]), encoding="utf-8")
        weights = tiny_weights(class_name, golden["shapes"], golden["seed"])
        tensors = {tensor: torch.from_numpy(values) for tensor, values in weights.items()}
        save_file(tensors, f"{folder}/model.safetensors", metadata={"format": "pt"})
        model_class = getattr(transformers, class_name)
        model = model_class.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    entries = []
    for prompt in golden["prompts"]:
        with torch.inference_mode():
            states = model.base_model(input_ids=torch.tensor([prompt["prompt_token_ids"]])).last_hidden_state[0]
        both = {"last": states[-1], "mean": states.mean(dim=0)}
        entries.append({kind: [round(value, 6) for value in values.tolist()] for kind, values in both.items()})
    return entries


def main() -> None:
    torch.set_num_threads(1)
    header = {"torch": torch.__version__, "transformers": transformers.__version__}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(pooled(name))}" for name in NAMES)
    head = "".join(f"{json.dumps(key)}: {json.dumps(value)},\n" for key, value in header.items())
    (HERE / "pooled.json").write_text(f'{{\n{head}"models": {{\n{lines}\n}}\n}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
