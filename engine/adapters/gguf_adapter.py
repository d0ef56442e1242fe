"""A GGUF file of an adapter, as llama.cpp's converter makes them of PEFT's folders."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from engine.adapters.adapter_file import AdapterFile, TensorPair
from engine.adapters.peft_folder import PeftFolder
from engine.interface.errors import ModelError
from engine.weights.formats.gguf_tensors import GGUFTensors

SUFFIX = ".gguf"
_PAIR = re.compile(r"(?P<module>.+)\.weight\.lora_(?P<half>[ab])")


class GgufAdapter(AdapterFile):
    """An adapter in a GGUF file."""

    file_format = "gguf"
    halves = ("lora_a", "lora_b")

    def __init__(self, path: Path) -> None:
        """Raises ModelError: the file is damaged, is no adapter, or has what is not served."""
        file = GGUFTensors(path)
        kind, of_adapter = file.value("general.type"), file.value("adapter.type")
        if kind != "adapter" or of_adapter != "lora":
            raise ModelError(
                f"{path} is no low-rank adapter: general.type is {kind!r} and adapter.type {of_adapter!r}, and not "
                "'adapter' and 'lora'"
            )
        if file.value("adapter.alora.invocation_tokens") is not None:
            raise ModelError(f"{path}: the adapter is an activated LoRA, which is not served")
        alpha = file.value("adapter.lora.alpha")
        if alpha is None:
            alpha = 0.0
        if not isinstance(alpha, int | float) or isinstance(alpha, bool) or alpha < 0:
            raise ModelError(f"{path}: adapter.lora.alpha is {alpha!r}; it must be a number that is not negative")
        self._alpha = float(alpha)
        self._architecture = file.architecture
        super().__init__(path, _pairs_of(path, file))

    @property
    def largest_rank(self) -> int:
        return max((pair.down.shape[0] for pair in self._pairs.values() if pair.down and pair.down.shape), default=0)

    def scale(self, module: str, rank: int) -> float:
        return self._alpha / rank if self._alpha else 1.0  # as llama.cpp has it

    @property
    def made_for(self) -> str:
        return f"; it was made for a model of the architecture {self._architecture[:100]}"

    def check_architecture(self, names: Sequence[str]) -> None:
        if self._architecture not in names:
            raise ModelError(
                f"{self.path}: the adapter is for the architecture {self._architecture[:100]!r}, and the model is of "
                f"{names[0]!r}"
            )


def open_adapter(path: Path) -> AdapterFile:
    """An adapter's folder or its GGUF file; raises ModelError where it is damaged or not served."""
    if path.is_dir():
        return PeftFolder(path)
    if path.is_file() and path.suffix == SUFFIX:
        return GgufAdapter(path)
    raise ModelError(f"{path} is no adapter, which is a folder in PEFT's layout or a GGUF file")


def _pairs_of(path: Path, file: GGUFTensors) -> dict[str, TensorPair]:
    """The pairs by the names of their modules; raises ModelError for anything else."""
    pairs: dict[str, TensorPair] = defaultdict(TensorPair)
    for name in sorted(file.names):
        matched = _PAIR.fullmatch(name)
        if matched is None:
            raise ModelError(f"{path}: the adapter has the tensor {name!r}, which is no half of a low-rank pair")
        setattr(pairs[matched["module"]], "down" if matched["half"] == "a" else "up", file.tensor(name))
    if not pairs:
        raise ModelError(f"{path} has no tensors")
    return dict(pairs)
