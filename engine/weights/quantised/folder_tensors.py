"""The tensors of a folder, quantised or not, by the names that they have where nothing is quantised."""

from collections.abc import Iterator

import numpy as np

from engine.interface.errors import ModelError
from engine.weights.formats.model_folder import JsonFile
from engine.weights.formats.safetensors_files import STORED_TYPES, SafetensorsFiles
from engine.weights.quantised import mxfp4
from engine.weights.quantised.parts import Parts
from engine.weights.quantised.schemes import Kind, Scheme, read_scheme
from engine.weights.tensors import FileTensor

WEIGHT = "weight"


class FolderTensors:
    """A `TensorFile` of a folder, quantised or not.

    A matrix counts as quantised by its tensors, not by the lists of the configuration.
    """

    format = SafetensorsFiles.format

    def __init__(self, config: JsonFile, files: SafetensorsFiles) -> None:
        """Raises ModelError if the quantisation is not supported, or its configuration contradicts the tensors."""
        self._files = files
        scheme = read_scheme(config)
        self._quantised = {} if scheme is None else dict(_quantised_modules(files, scheme))
        self._mxfp4 = mxfp4.names_of_blocks(files.names) if scheme is not None and scheme.has_mxfp4 else frozenset()
        if scheme is not None and not self._quantised and not self._mxfp4:
            raise ModelError(f"{config.path} says that the model is quantised ({scheme.label}), but no tensor is")
        self.quantization = None if scheme is None else scheme.label
        parts = mxfp4.names_of_scales(self._mxfp4) | {
            f"{module}.{name}" for module, kind in self._quantised.items() for name in kind.names
        }
        self.names = (files.names - parts) | {f"{module}.{WEIGHT}" for module in self._quantised}

    def tensor(self, name: str) -> FileTensor | None:
        """A tensor by its name, or None; raises ModelError if it, or a part of it, is not as it should be."""
        if name in self._mxfp4:
            return mxfp4.read_tensor(self._files, name)
        module, _, part = name.rpartition(".")
        if part == WEIGHT and module in self._quantised:
            return self._quantised[module].make(Parts(self._files, module))
        return self._files.tensor(name)

    def is_idle(self, name: str) -> bool:
        """Whether a tensor has no effect: tools for GPTQ write biases of zeros where a model has none."""
        module, _, part = name.rpartition(".")
        if part != "bias" or module not in self._quantised:
            return False
        bias = self._files.array(name, STORED_TYPES)
        return bias is not None and not np.any(bias.read())


def _quantised_modules(files: SafetensorsFiles, scheme: Scheme) -> Iterator[tuple[str, Kind]]:
    """The modules whose matrices are quantised; the last kind of one comes first, so that the first one counts."""
    for kind in reversed(scheme.kinds):
        suffix = f".{kind.marker}"
        yield from ((name.removesuffix(suffix), kind) for name in files.names if name.endswith(suffix))
