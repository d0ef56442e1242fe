"""What the files of adapters have in common, whatever their format: pairs of matrices by the names of modules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from engine.adapters.adapter_weights import AdapterWeights, LeafPair, weights_of
from engine.adapters.targets import AdapterTarget
from engine.interface.errors import ModelError
from engine.weights.leaf import Part
from engine.weights.tensors import ModelTensor, TensorWrapper

_NUM_NAMES_SHOWN = 3


@dataclass
class TensorPair:
    """Both halves of the pair of one module."""

    down: ModelTensor | None = None  # [rank, inputs]
    up: ModelTensor | None = None  # [outputs, rank]


@dataclass(frozen=True)
class _Up(TensorWrapper):
    """The second half of a pair, whose outputs are reordered and chosen as those of the module's weights."""


class _FoundPair(NamedTuple):
    """A pair that fits its module, not yet read."""

    down: ModelTensor  # [rank, inputs]
    up: ModelTensor  # [outputs, rank], in the order of the model's weights
    rank: int
    scale: float


class AdapterFile(ABC):
    """An adapter whose configuration is read and whose tensors are found, but not yet read."""

    file_format: ClassVar[str]  # as parts of leaves know it
    halves: ClassVar[tuple[str, str]]  # how the file names them, for messages

    def __init__(self, path: Path, pairs: Mapping[str, TensorPair]) -> None:
        """Takes the pairs by the names of their modules, as `AdapterTarget.module` has them."""
        self.path = path
        self._pairs = pairs

    @property
    @abstractmethod
    def largest_rank(self) -> int:
        """Of all modules."""

    @abstractmethod
    def scale(self, module: str, rank: int) -> float:
        """What the product of a module's pair is multiplied with; raises ModelError for a rank that cannot be."""

    @property
    def made_for(self) -> str:
        """The end of a message: which model the adapter was made for, where that is known."""
        return ""

    def check_architecture(self, names: Sequence[str]) -> None:
        """Raises ModelError where the adapter says that it is for none of these architectures of GGUF files."""
        return

    def check(self, targets: Sequence[AdapterTarget], max_rank: int) -> None:
        """Raises ModelError where the pairs do not fit a model with these targets, by the headers of their files."""
        self._check_modules(targets)
        for target in targets:
            for module, part in self._modules(target).values():
                pair = self._pairs.get(module)
                if pair is not None:
                    self._found(module, pair, part, max_rank)

    def read(self, targets: Sequence[AdapterTarget], max_rank: int, padded_rank: int) -> AdapterWeights:
        """Reads all pairs for a model with these targets; raises as `check`, and for numbers that are not finite."""
        self.check(targets, max_rank)
        pairs: dict[str, LeafPair] = {}
        for target in targets:
            pair = self._of_leaf(target, max_rank, padded_rank)
            if pair is not None:
                pairs[target.name] = pair
        return weights_of(pairs)

    def _check_modules(self, targets: Sequence[AdapterTarget]) -> None:
        """Raises ModelError where the adapter changes something else."""
        known = {
            target.module(part, layer, self.file_format)
            for target in targets
            for part in target.parts
            for layer in target.layers
        }
        unknown = sorted(self._pairs.keys() - known)
        if unknown:
            listed = ", ".join(unknown[:_NUM_NAMES_SHOWN])
            more = f" and {len(unknown) - _NUM_NAMES_SHOWN} more" if len(unknown) > _NUM_NAMES_SHOWN else ""
            raise ModelError(
                f"{self.path}: the adapter changes {listed}{more}, which this model does not have or does not let "
                f"adapters change{self.made_for}"
            )

    def _of_leaf(self, target: AdapterTarget, max_rank: int, padded_rank: int) -> LeafPair | None:
        """What the adapter adds to a leaf, or None where that is nothing."""
        modules = self._modules(target)
        if not any(module in self._pairs for module, _ in modules.values()):
            return None
        num_parts, num_layers = len(target.parts), len(target.layers)
        down = np.zeros((num_layers, num_parts * padded_rank, target.num_inputs), np.float32)
        up = np.zeros((num_layers, padded_rank, target.ends[-1]), np.float32)
        starts, largest = (0, *target.ends), 0
        for (place, index), (module, part) in modules.items():
            pair = self._pairs.get(module)
            if pair is None:
                continue
            found = self._found(module, pair, part, max_rank)
            rank, row = found.rank, index * padded_rank
            down[place, row : row + rank] = found.down.float32()
            up[place, :rank, starts[index] : starts[index + 1]] = found.up.float32().T * np.float32(found.scale)
            largest = max(largest, rank)
        if not (np.isfinite(down).all() and np.isfinite(up).all()):
            raise ModelError(f"{self.path}: the adapter has numbers that are not finite")
        return LeafPair(down, up, largest)

    def _modules(self, target: AdapterTarget) -> dict[tuple[int, int], tuple[str, Part]]:
        """The modules of a leaf and their parts, by their places among its layers and its parts."""
        return {
            (place, index): (target.module(part, layer, self.file_format), part)
            for place, layer in enumerate(target.layers)
            for index, part in enumerate(target.parts)
        }

    def _found(self, module: str, pair: TensorPair, part: Part, max_rank: int) -> _FoundPair:
        """Both halves of a module's pair, which fit it; raises ModelError."""
        if pair.down is None or pair.up is None:
            missing = self.halves[0 if pair.down is None else 1]
            raise ModelError(f"{self.path} is not complete: {module} has no {missing}")
        for half in (pair.down, pair.up):
            if len(half.shape) != 2:
                raise ModelError(f"{self.path}: {half.name} has the shape {half.shape}; it must be a matrix")
        rank = pair.down.shape[0]
        if rank != pair.up.shape[1] or rank < 1:
            raise ModelError(f"{self.path}: {module} has matrices of the ranks {rank} and {pair.up.shape[1]}")
        if rank > max_rank:
            raise ModelError(f"{self.path}: the adapter has the rank {rank}, and max_lora_rank is {max_rank}")
        transform = part.stored[self.file_format].transform
        up = _Up(pair.up) if transform is None else transform(_Up(pair.up))
        if pair.down.shape[1] != part.shape[1] or up.shape != (part.shape[0], rank):
            raise ModelError(
                f"{self.path}: {module} is for a matrix of {pair.up.shape[0]} outputs and {pair.down.shape[1]} inputs, "
                f"and the model's has other sizes{self.made_for}"
            )
        return _FoundPair(pair.down, up, rank, self.scale(module, rank))
