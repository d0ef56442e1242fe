"""The folder of an adapter in PEFT's layout: `adapter_config.json` and `adapter_model.safetensors`."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from engine.adapters.adapter_file import AdapterFile, TensorPair
from engine.adapters.peft_config import CONFIG, PeftConfig
from engine.adapters.targets import plain_name
from engine.interface.errors import ModelError
from engine.weights.formats.model_folder import Folder
from engine.weights.formats.safetensors_files import SafetensorsFile

WEIGHTS = "adapter_model.safetensors"
_PICKLE = "adapter_model.bin"
_PAIR = re.compile(r"(?P<module>.+)\.lora_(?P<half>[AB])(?:\.[^.]+)?\.weight")
_NOT_SERVED = {
    "lora_magnitude_vector": "DoRA",
    "lora_embedding_": "changes of the embedding",
    "lora_A.bias": "biases of its own",
    "lora_B.bias": "biases of its own",
    "modules_to_save": "modules to save, which are whole weights",
}


class PeftFolder(AdapterFile):
    """An adapter in a folder."""

    file_format = "safetensors"
    halves = ("lora_A", "lora_B")

    def __init__(self, path: Path) -> None:
        """Raises ModelError: a file is missing or damaged, or the adapter has what is not served."""
        folder = Folder(path)
        config = folder.json(CONFIG)
        if config is None:
            raise ModelError(f"{path} is no adapter: it has no {CONFIG}")
        self._config = PeftConfig(config)
        weights = folder.file(WEIGHTS)
        if weights is None:
            if folder.file(_PICKLE) is not None:
                raise ModelError(
                    f"{path} has {_PICKLE} in the place of {WEIGHTS}; pickles are not read, because they may run code"
                )
            raise ModelError(f"{path} is not complete: it has no {WEIGHTS}")
        super().__init__(path, _pairs_of(path, SafetensorsFile(weights)))

    @property
    def largest_rank(self) -> int:
        return self._config.largest_rank

    def scale(self, module: str, rank: int) -> float:
        if rank != self._config.rank(module):
            raise ModelError(
                f"{self.path}: {module} has matrices of the rank {rank}, and {CONFIG} says {self._config.rank(module)}"
            )
        return self._config.scale(module)

    @property
    def made_for(self) -> str:
        return "" if self._config.base_model is None else f"; it was made for {self._config.base_model[:200]}"


def _pairs_of(path: Path, file: SafetensorsFile) -> dict[str, TensorPair]:
    """The pairs by the plain names of their modules; raises ModelError for anything else."""
    pairs: dict[str, TensorPair] = defaultdict(TensorPair)
    for name in sorted(file.names):
        matched = _PAIR.fullmatch(name)
        tensor = file.tensor(name)
        if matched is None or tensor is None:
            what = next((said for part, said in _NOT_SERVED.items() if part in name), None)
            raise ModelError(
                f"{path}: the adapter has {what}, which is not served ({name})"
                if what
                else f"{path}: the adapter has the tensor {name!r}, which is no half of a low-rank pair; modules to "
                "save are not served"
            )
        pair, half = pairs[plain_name(matched["module"])], "down" if matched["half"] == "A" else "up"
        if getattr(pair, half) is not None:
            raise ModelError(f"{path}: the adapter changes {plain_name(matched['module'])} twice")
        setattr(pair, half, tensor)
    if not pairs:
        raise ModelError(f"{path}: {WEIGHTS} has no tensors")
    return dict(pairs)
