"""Writes the tiny models of configs.py as folders and, with llama.cpp's own converter, as GGUF files.

In the virtual environment of make.py, with a source tree of llama.cpp beside it:

    goldenv/bin/python -m tests.golden.architectures.convert LLAMA_CPP FOLDER [NAME...]

compare.py then compares FOLDER/NAME with FOLDER/NAME.gguf. The models have no tokenizer, so that no vocabulary is
written.
"""

# mypy: disable-error-code="import-not-found"
# What is imported here is installed in another virtual environment, or belongs to llama.cpp.

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

from tests.golden.architectures.configs import CONFIGS, VOCAB_SIZE
from tests.golden.architectures.make import FILE, write_untrained
from tests.golden.architectures.tiny_weights import tiny_weights

# What the converter refuses, or of which it writes too little: layers that have a window or do not rotate.
LEFT_OUT = {"ministral", "qwen2_windows", "smollm3_windows"}

_PUBLISHED_GEMMA = {"query_pre_attn_scalar": 32, "tie_word_embeddings": True}  # as in all models, and so in no file
_GEMMA3: dict[str, Any] = {
    **_PUBLISHED_GEMMA,
    "num_hidden_layers": 7,
    "layer_types": [*["sliding_attention"] * 5, "full_attention", "sliding_attention"],
}

# Where the converter counts on what the published models have in common.
CHANGES: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": None},
    "mixtral": {"sliding_window": None},
    "gemma2": {**_PUBLISHED_GEMMA, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    "gemma3": _GEMMA3,
    "gemma3_pictures": {"text_config": {**CONFIGS["gemma3"][1], **_GEMMA3}, "tie_word_embeddings": True},
}


def write_folder(name: str, folder: Path) -> None:
    """Writes a model in Hugging Face's layout."""
    class_name, arguments = CONFIGS[name]
    shapes, _ = write_untrained(class_name, {**arguments, **CHANGES.get(name, {})}, folder)
    tensors = {tensor: torch.from_numpy(values) for tensor, values in tiny_weights(class_name, shapes, 0).items()}
    save_file(tensors, folder / FILE, metadata={"format": "pt"})
    vocabulary = {f"token {number}": number for number in range(VOCAB_SIZE)}
    # The converter of Gemma 3 asks this file how many tokens there are.
    text = json.dumps({"model": {"vocab": vocabulary}, "added_tokens": []})
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")


def convert(folder: Path, file: Path) -> None:
    """Runs llama.cpp's converter on a folder, in float32 and without a vocabulary."""
    import gguf
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class

    fields = ModelBase.load_hparams(folder, False)
    converter = get_model_class(get_model_architecture(fields, ModelType.TEXT))
    _without_vocabulary()
    converter(folder, gguf.LlamaFileType.ALL_F32, file).write()


def _without_vocabulary() -> None:
    from conversion import TextModel

    left = [TextModel]
    while left:
        converter = left.pop()
        converter.set_vocab = TextModel._set_vocab_none
        left += converter.__subclasses__()


def main() -> None:
    llama_cpp, root = map(Path, sys.argv[1:3])
    sys.path[:0] = [str(llama_cpp), str(llama_cpp / "gguf-py")]
    transformers.utils.logging.set_verbosity_error()
    root.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[3:] or CONFIGS:
        if name in LEFT_OUT:
            continue
        write_folder(name, root / name)
        with torch.inference_mode():
            convert(root / name, root / f"{name}.gguf")


if __name__ == "__main__":
    main()
