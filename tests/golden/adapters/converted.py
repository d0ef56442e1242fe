"""The adapter of which llama.cpp's converter made `llama.gguf`: rank 2, each kind of module, in some layers only."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.engine.adapters.peft_adapters import ALL, pairs_of
from tests.engine.models.test_architectures import GOLDENS, tensors_of

FILE = Path(__file__).with_name("llama.gguf")
CONFIG = {"r": 2, "lora_alpha": 3}
SCALE = 1.5  # alpha by rank


def write_base(folder: Path) -> Path:
    """The model that the adapter is for."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(GOLDENS["llama"]["config"]), encoding="utf-8")
    save_file(tensors_of(GOLDENS["llama"]), folder / "model.safetensors")
    return folder


def converted_pairs(base: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Of every third module of the base model."""
    return dict(list(pairs_of(base, ALL, 2, 5).items())[1::3])
