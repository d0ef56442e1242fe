"""The folder of an adapter in PEFT's layout: `adapter_config.json` and `adapter_model.safetensors`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.adapters.adapter_weights import AdapterWeights, LeafPair, weights_of
from engine.adapters.peft_config import CONFIG, PeftConfig
from engine.adapters.targets import AdapterTarget, plain_name
from engine.interface.errors import ModelError
from engine.weights.formats.model_folder import Folder
from engine.weights.formats.safetensors_files import SafetensorsFile, StoredTensor
from engine.weights.leaf import Part
from engine.weights.tensors import TensorWrapper

WEIGHTS = "adapter_model.safetensors"
_PICKLE = "adapter_model.bin"
_NUM_NAMES_SHOWN = 3
_PAIR = re.compile(r"(?P<module>.+)\.lora_(?P<half>[AB])(?:\.[^.]+)?\.weight")
_NOT_SERVED = {
    "lora_magnitude_vector": "DoRA",
    "lora_embedding_": "changes of the embedding",
    "lora_A.bias": "biases of its own",
    "lora_B.bias": "biases of its own",
    "modules_to_save": "modules to save, which are whole weights",
}


@dataclass
class _Pair:
    """Both halves of the pair of one module."""

    down: StoredTensor | None = None  # [rank, inputs]
    up: StoredTensor | None = None  # [outputs, rank]


@dataclass(frozen=True)
class _Up(TensorWrapper):
    """The second half of a pair, whose outputs are reordered and chosen as those of the module's weights."""


class PeftFolder:
    """An adapter whose configuration is read and whose tensors are found, but not yet read."""

    def __init__(self, path: Path) -> None:
        """Raises ModelError: a file is missing or damaged, or the adapter has what is not served."""
        self.path = path
        if not path.is_dir():
            raise ModelError(f"{path} is no folder of an adapter, which has {CONFIG} and {WEIGHTS}")
        folder = Folder(path)
        config = folder.json(CONFIG)
        if config is None:
            raise ModelError(f"{path} is no adapter: it has no {CONFIG}")
        self.config = PeftConfig(config)
        weights = folder.file(WEIGHTS)
        if weights is None:
            if folder.file(_PICKLE) is not None:
                raise ModelError(
                    f"{path} has {_PICKLE} in the place of {WEIGHTS}; pickles are not read, because they may run code"
                )
            raise ModelError(f"{path} is not complete: it has no {WEIGHTS}")
        self._pairs = self._found(SafetensorsFile(weights))

    def read(self, targets: Sequence[AdapterTarget], max_rank: int, padded_rank: int) -> AdapterWeights:
        """Reads all pairs for a model with these targets; raises ModelError where they do not fit it."""
        self._check_modules(targets)
        pairs: dict[str, LeafPair] = {}
        for target in targets:
            pair = self._of_leaf(target, max_rank, padded_rank)
            if pair is not None:
                pairs[target.name] = pair
        return weights_of(pairs)

    def _found(self, file: SafetensorsFile) -> dict[str, _Pair]:
        """The pairs by the names of their modules."""
        pairs: dict[str, _Pair] = defaultdict(_Pair)
        for name in sorted(file.names):
            matched = _PAIR.fullmatch(name)
            tensor = file.tensor(name)
            if matched is None or tensor is None:
                what = next((said for part, said in _NOT_SERVED.items() if part in name), None)
                raise ModelError(
                    f"{self.path}: the adapter has {what}, which is not served ({name})"
                    if what
                    else f"{self.path}: the adapter has the tensor {name!r}, which is no half of a low-rank pair; "
                    "modules to save are not served"
                )
            pair, half = pairs[plain_name(matched["module"])], "down" if matched["half"] == "A" else "up"
            if getattr(pair, half) is not None:
                raise ModelError(f"{self.path}: the adapter changes {plain_name(matched['module'])} twice")
            setattr(pair, half, tensor)
        if not pairs:
            raise ModelError(f"{self.path}: {WEIGHTS} has no tensors")
        return dict(pairs)

    def _check_modules(self, targets: Sequence[AdapterTarget]) -> None:
        """Raises ModelError where the adapter changes something else."""
        known = {target.module(part, layer) for target in targets for part in target.parts for layer in target.layers}
        unknown = sorted(self._pairs.keys() - known)
        if unknown:
            listed = ", ".join(unknown[:_NUM_NAMES_SHOWN])
            more = f" and {len(unknown) - _NUM_NAMES_SHOWN} more" if len(unknown) > _NUM_NAMES_SHOWN else ""
            raise ModelError(
                f"{self.path}: the adapter changes {listed}{more}, which this model does not have or does not let "
                f"adapters change{self._made_for}"
            )

    def _of_leaf(self, target: AdapterTarget, max_rank: int, padded_rank: int) -> LeafPair | None:
        """What the adapter adds to a leaf, or None where that is nothing."""
        modules = {
            (place, index): target.module(part, layer)
            for place, layer in enumerate(target.layers)
            for index, part in enumerate(target.parts)
        }
        if not any(module in self._pairs for module in modules.values()):
            return None
        num_parts, num_layers = len(target.parts), len(target.layers)
        down = np.zeros((num_layers, num_parts * padded_rank, target.num_inputs), np.float32)
        up = np.zeros((num_layers, padded_rank, target.ends[-1]), np.float32)
        starts, largest = (0, *target.ends), 0
        for (place, index), module in modules.items():
            pair = self._pairs.get(module)
            if pair is None:
                continue
            first, second, rank = self._halves(module, pair, target.parts[index], max_rank)
            row = index * padded_rank
            down[place, row : row + rank] = first
            up[place, :rank, starts[index] : starts[index + 1]] = second.T * np.float32(self.config.scale(module))
            largest = max(largest, rank)
        if not (np.isfinite(down).all() and np.isfinite(up).all()):
            raise ModelError(f"{self.path}: the adapter has numbers that are not finite")
        return LeafPair(down, up, largest)

    def _halves(self, module: str, pair: _Pair, part: Part, max_rank: int) -> tuple[np.ndarray, np.ndarray, int]:
        """The numbers of a pair, [rank, inputs] and [outputs, rank], and its rank; raises ModelError."""
        if pair.down is None or pair.up is None:
            missing = "lora_A" if pair.down is None else "lora_B"
            raise ModelError(f"{self.path} is not complete: {module} has no {missing}")
        for half in (pair.down, pair.up):
            if len(half.shape) != 2:
                raise ModelError(f"{self.path}: {half.name} has the shape {half.shape}; it must be a matrix")
        rank = pair.down.shape[0]
        if rank != pair.up.shape[1] or rank != self.config.rank(module):
            raise ModelError(
                f"{self.path}: {module} has matrices of the ranks {rank} and {pair.up.shape[1]}, and {CONFIG} says "
                f"{self.config.rank(module)}"
            )
        if rank > max_rank:
            raise ModelError(f"{self.path}: the adapter has the rank {rank}, and max_lora_rank is {max_rank}")
        transform = part.stored["safetensors"].transform
        up = _Up(pair.up) if transform is None else transform(_Up(pair.up))
        if pair.down.shape[1] != part.shape[1] or up.shape != (part.shape[0], rank):
            raise ModelError(
                f"{self.path}: {module} is for a matrix of {pair.up.shape[0]} outputs and {pair.down.shape[1]} inputs, "
                f"and the model's has other sizes{self._made_for}"
            )
        return pair.down.float32(), up.float32(), rank

    @property
    def _made_for(self) -> str:
        """The end of a message: which model the adapter was made for."""
        return "" if self.config.base_model is None else f"; it was made for {self.config.base_model[:200]}"
