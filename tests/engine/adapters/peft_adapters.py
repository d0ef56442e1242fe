"""Adapters in PEFT's layout with weights by formula, and the models in which they are merged."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from tests.golden.tiny_llama import noise

WEIGHTS = "model.safetensors"
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL = (*ATTENTION, "gate_proj", "up_proj", "down_proj")


def pairs_of(
    model: Path, modules: Sequence[str], rank: int, seed: int, ranks: Mapping[str, int] | None = None
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """A pair of matrices for each module of a model's folder whose name ends in one of `modules`."""
    shapes = {name.removesuffix(".weight"): tensor.shape for name, tensor in load_file(model / WEIGHTS).items()}
    found = {}
    for index, (module, shape) in enumerate(sorted(shapes.items())):
        last = module.rpartition(".")[2]
        if last in modules and len(shape) == 2:
            own = (ranks or {}).get(last, rank)
            down = noise(seed + 2 * index, (own, shape[1])) / 2
            up = noise(seed + 2 * index + 1, (shape[0], own)) / 2
            found[module] = (np.ascontiguousarray(down), np.ascontiguousarray(up))
    return found


def write_adapter(
    folder: Path, pairs: Mapping[str, tuple[np.ndarray, np.ndarray]], config: Mapping[str, Any],
    extra: Mapping[str, np.ndarray] | None = None,
) -> Path:  # fmt: skip
    """Writes a folder as PEFT does; `extra` are further tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = dict(extra or {})
    for module, (down, up) in pairs.items():
        tensors[f"base_model.model.{module}.lora_A.weight"] = down
        tensors[f"base_model.model.{module}.lora_B.weight"] = up
    save_file(tensors, folder / "adapter_model.safetensors")
    whole = {"peft_type": "LORA", "base_model_name_or_path": "someone/base", "bias": "none", **config}
    (folder / "adapter_config.json").write_text(json.dumps(whole), encoding="utf-8")
    return folder


def merged(
    model: Path, folder: Path, pairs: Mapping[str, tuple[np.ndarray, np.ndarray]], scales: Mapping[str, float]
) -> Path:
    """The model with the adapter added to its weights, each module by the scale of its last name."""
    shutil.copytree(model, folder)
    tensors = load_file(folder / WEIGHTS)
    for module, (down, up) in pairs.items():
        scale = scales[module.rpartition(".")[2]]
        tensors[f"{module}.weight"] = (tensors[f"{module}.weight"] + scale * (up @ down)).astype(np.float32)
    save_file(tensors, folder / WEIGHTS)
    return folder


def rank_stabilised(alpha: float, rank: int) -> float:
    return alpha / math.sqrt(rank)
