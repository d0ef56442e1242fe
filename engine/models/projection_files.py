"""Finds the dense layers behind pooled texts: of `modules.json` in a folder, and of GGUF files."""

from __future__ import annotations

from collections.abc import Mapping

from engine.backends.base.model_config import Projection
from engine.interface.errors import ModelError
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import MODULES, JsonFile, ModelFolder
from engine.weights.formats.safetensors_files import SafetensorsFiles
from engine.weights.quantised.folder_tensors import FolderTensors
from engine.weights.tensors import FileTensor

MAX_FEATURES = 1 << 16  # of a dense layer
_LINEAR = "linear"  # the name of the layer within its module
_POOLED = "sentence_embedding"  # what a dense layer reads and makes, as sentence-transformers calls it
_HEAD = "score", "cls.output"  # of a decoder, in a folder and in a GGUF file
_DENSE_OF_GGUF = ("dense_2", "dense_3")  # Gemma's, in their order


class WithModules:
    """A `TensorFile` of a folder and of the dense modules in it, whose tensors are named `PLACE/NAME`."""

    def __init__(self, files: FolderTensors, modules: Mapping[str, SafetensorsFiles]) -> None:
        self._files, self._modules = files, modules
        of_modules = {f"{place}/{name}" for place, each in modules.items() for name in each.names}
        self.names = files.names | of_modules

    def tensor(self, name: str) -> FileTensor | None:
        """A tensor by its name, or None; raises ModelError as that of the file."""
        place, _, inner = name.rpartition("/")
        return self._modules[place].tensor(inner) if place in self._modules else self._files.tensor(name)


def projections_of_folder(
    folder: ModelFolder, num_inputs: int
) -> tuple[tuple[Projection, ...], dict[str, SafetensorsFiles]]:
    """The dense layers of a folder, and the files of each by its place; raises ModelError."""
    projections, files, is_normed = [], {}, False
    for module in folder.modules():
        is_normed |= module.kind == "Normalize"
        if module.kind != "Dense":
            continue
        of_module = ModelFolder(folder.path / module.place)
        projection = _read_dense(of_module.config, module.place, num_inputs)
        # Of a linear layer only the length of the embedding depends on the order, and that is 1 in the end.
        if is_normed and not projection.is_linear:
            raise ModelError(
                f"{folder.path / MODULES} has a dense layer with biases or tanh behind Normalize, which is not served"
            )
        projections.append(projection)
        files[module.place] = SafetensorsFiles(of_module)
        num_inputs = projection.num_outputs
    return tuple(projections), files


def projections_of_gguf(file: GGUFTensors) -> tuple[Projection, ...]:
    """The dense layers of a GGUF file."""
    return tuple(_of_gguf(file, name) for name in _DENSE_OF_GGUF if f"{name}.weight" in file.names)


def head_of_folder(num_inputs: int, num_labels: int) -> Projection:
    """The head of a decoder that scores texts."""
    return Projection(num_inputs, num_labels, *_HEAD)


def head_of_gguf(file: GGUFTensors) -> Projection | None:
    """The same of a GGUF file; None where it has none."""
    return _of_gguf(file, _HEAD[1]) if f"{_HEAD[1]}.weight" in file.names else None


def _read_dense(config: JsonFile, place: str, num_inputs: int) -> Projection:
    if config.required_integer("in_features", least=1) != num_inputs:
        raise config.error("in_features", f"it must be {num_inputs}, as many as there are before it")
    activation = (config.text("activation_function") or "Tanh").rpartition(".")[2]
    if activation not in ("Identity", "Tanh"):
        raise config.error("activation_function", "it must be Identity or Tanh")
    if config.flag("use_residual"):
        raise config.error("use_residual", "dense layers that add their inputs are not served")
    for key in ("module_input_name", "module_output_name"):
        if config.text(key) not in (None, _POOLED):
            raise config.error(key, f'it must be "{_POOLED}"')
    num_outputs = config.required_integer("out_features", least=1, most=MAX_FEATURES)
    has_bias = config.flag("bias") is not False
    return Projection(num_inputs, num_outputs, f"{place}/{_LINEAR}", "", has_bias, has_tanh=activation == "Tanh")


def _of_gguf(file: GGUFTensors, name: str) -> Projection:
    tensor = file.tensor(f"{name}.weight")
    if tensor is None or len(tensor.shape) != 2:
        raise ModelError(f"{name}.weight is no matrix")
    num_outputs, num_inputs = tensor.shape
    return Projection(num_inputs, num_outputs, "", name, f"{name}.bias" in file.names)
