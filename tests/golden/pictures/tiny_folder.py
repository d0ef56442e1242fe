"""The folder of a tiny model that sees."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.numpy import save_file

from tests.golden.architectures.tiny_weights import tiny_weights

GOLDEN: dict[str, Any] = json.loads(Path(__file__).with_name("gemma3.json").read_text(encoding="utf-8"))


def write_tiny_folder(path: Path, golden: Mapping[str, Any] = GOLDEN) -> Path:
    """Writes a model, that of `gemma3.json` or another one, without a tokenizer into a folder that is there."""
    (path / "config.json").write_text(json.dumps(golden["config"]), encoding="utf-8")
    tensors = tiny_weights(golden["config"]["architectures"][0], golden["shapes"], golden["seed"])
    save_file(tensors, path / "model.safetensors")
    return path
