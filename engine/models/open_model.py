"""Opens a model by its path, whatever its format and its architecture."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.backends.base.model_config import ModelConfig, Projection
from engine.interface.errors import ModelError, naming
from engine.interface.types import Progress
from engine.models.encoders.picture_tensors import is_of_pictures
from engine.models.parts.encoders.encoder_config import read_num_labels
from engine.models.parts.model import Model
from engine.models.parts.routed.joined_experts import with_experts_of_memory
from engine.models.projection_files import (
    WithModules,
    head_of_folder,
    head_of_gguf,
    projections_of_folder,
    projections_of_gguf,
)
from engine.models.registry import (
    Architecture,
    architecture_of_folder,
    architecture_of_gguf,
    has_head_of_labels,
)
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.image_processor import image_processor, stated_colours
from engine.weights.formats.model_folder import ModelFolder
from engine.weights.formats.safetensors_files import SafetensorsFiles
from engine.weights.layout import Precision, WeightsLayout
from engine.weights.loader import LeafTensors, Weights, bytes_in_memory, load_weights
from engine.weights.quantised.folder_tensors import FolderTensors
from engine.weights.tensors import TensorFile

_BOTH_WAYS = "a decoder whose tokens see what comes later is not served"
_NUM_NAMES_SHOWN = 3
_PREFIX = "model."  # of the tensors of a decoder in the folder of a model with its head
_EMBEDDING = "embed_tokens.weight"  # without it


@dataclass(frozen=True)
class OpenModel:
    """A model whose configuration is read and whose tensors are found, but not yet read."""

    path: Path
    architecture: Architecture
    model: Model
    tensors: LeafTensors
    quantization: str | None  # how the file says that its matrices are quantised, such as "Q4_K_M" or "awq int4 g128"
    mmproj: Path | None = None  # the file of its encoder of pictures, where that has one of its own
    lacks_encoder: bool = False  # whether its configuration states an encoder of pictures, and no tensor is of one

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    def laid_out_for(self, num_tokens: int | None) -> OpenModel:
        """As `Model.laid_out_for`; None: the longest requests that the model takes."""
        longest = min(num_tokens or self.config.context_length, self.config.context_length)
        model = self.model.laid_out_for(longest)
        if model is self.model:
            return self
        tensors = self.tensors.limited_to({leaf.name for leaf in model.all_leaves()})
        return dataclasses.replace(self, model=model, tensors=tensors)

    def for_context(self, num_tokens: int) -> OpenModel:
        """The model for requests of up to so many tokens."""
        return dataclasses.replace(self, model=self.model.for_context(num_tokens))

    def encoder_bytes(self, layout: WeightsLayout, precision: Precision) -> int:
        """The bytes in memory of its encoder of pictures; 0 where it has none. Raises ModelError."""
        encoder = self.model.encoder
        if encoder is None:
            return 0
        return bytes_in_memory(self.tensors, layout, precision, {leaf.name for leaf in encoder.leaves()})

    def load(self, layout: WeightsLayout, precision: Precision, progress: Progress) -> Weights:
        """Reads all weights; `progress` counts bytes of the file. Raises ModelError."""
        with naming(self.path):
            return load_weights(self.tensors, layout, precision, progress)


def open_model(path: Path, *, language_model_only: bool = False, mmproj: Path | None = None) -> OpenModel:
    """Opens a folder in Hugging Face's layout or a GGUF file; raises ModelError if the model cannot be served.

    Args:
        language_model_only: of a model that sees pictures only what reads text is opened.
        mmproj: the file of the encoder of pictures of a GGUF model; None: one beside the model, if there is one.
    """
    with naming(path):
        if mmproj is not None and language_model_only:
            raise ModelError(f"mmproj is {str(mmproj)!r}, and language_model_only leaves it out; give one of them")
        if not path.is_dir():
            return _open_gguf(path, mmproj, language_model_only=language_model_only)
        if mmproj is not None:
            raise ModelError(f"{path} is a folder, which has its own encoder; mmproj is for GGUF files")
        return _open_folder(path, language_model_only=language_model_only)


def refuse_unserved(path: Path) -> None:
    """Checks a model's architecture alone; raises ModelError if it is not supported, or the file cannot be read."""
    with naming(path):
        if path.is_dir():
            architecture_of_folder(ModelFolder(path))
        else:
            architecture_of_gguf(GGUFTensors(path))


def _open_folder(path: Path, *, language_model_only: bool) -> OpenModel:
    folder = ModelFolder(path)
    architecture = architecture_of_folder(folder)
    files = FolderTensors(folder.config, SafetensorsFiles(folder))
    is_base = _EMBEDDING in files.names  # the folder of a base model, as encoders of sentences made of decoders are
    has_head = has_head_of_labels(architecture)
    config = folder.config.with_values({"tie_word_embeddings": True}) if is_base or has_head else folder.config
    if not architecture.model.is_encoder:
        for table in (config, config.table("text_config")):
            if table is not None and table.value("is_causal") is False:
                raise table.error("is_causal", _BOTH_WAYS)
    has_pictures = any(map(is_of_pictures, files.names))
    names = {name for name in files.names if not is_of_pictures(name)} if language_model_only else files.names
    processor = image_processor(folder) if config.table("vision_config") is not None else None
    if processor is not None:
        config = config.with_values(stated_colours(processor))
    model = architecture.model.from_folder(config, names)
    lacks_encoder = not has_pictures and model.encoder is None and config.table("vision_config") is not None
    projections, modules = projections_of_folder(folder, model.config.hidden_size)
    num_labels = read_num_labels(folder.config) if has_head else 0
    if has_head:
        projections += (head_of_folder(model.config.hidden_size, num_labels),)
    model = _with_projections(path, model, projections, num_labels)
    leaves = model.all_leaves()
    if is_base:
        leaves = tuple(leaf.renamed(files.format, _of_base_model) for leaf in leaves)
    found = WithModules(files, modules)
    leaves = with_experts_of_memory(leaves, found.names)
    tensors = LeafTensors(leaves, model.config.num_layers, found, files.format)
    shapes = tensors.shapes()
    # Whoever wrote the folder named all its tensors: what is missing or left over makes it another model.
    missing = [name for name in shapes if name not in found.names]
    if missing:
        raise ModelError(f"{path} lacks the {_listed(missing)}")
    unknown = sorted(
        name for name in found.names - shapes.keys() if not model.leaves_out(name) and not files.is_idle(name)
    )
    if unknown:
        raise ModelError(f"{path} has what {architecture.transformers_name} does not: the {_listed(unknown)}")
    _check_shapes(path, tensors)
    return OpenModel(path, architecture, model, tensors, files.quantization, lacks_encoder=lacks_encoder)


def _open_gguf(path: Path, mmproj: Path | None, *, language_model_only: bool) -> OpenModel:
    # It imports every encoder of pictures, which a folder and a start do not need.
    from engine.models.vision_file import WithVision, find_vision_file

    text = GGUFTensors(path)
    architecture = architecture_of_gguf(text)
    if not architecture.model.is_encoder and text.fields.value("attention.causal") is False:
        raise text.fields.error("attention.causal", _BOTH_WAYS)
    model = architecture.model.from_gguf(text)
    vision = None if language_model_only else find_vision_file(path, text, model, mmproj)
    projections, head = projections_of_gguf(text), None if model.is_encoder else head_of_gguf(text)
    if head is not None:
        projections += (head,)
    model = _with_projections(path, model, projections, 0 if head is None else head.num_outputs)
    file: TensorFile = text
    if vision is not None:
        model, file = vision.seen_by(model), WithVision(text, vision.mmproj)
    leaves = model.all_leaves() if vision is None else tuple(map(vision.with_gguf_names, model.all_leaves()))
    tensors = LeafTensors(leaves, model.config.num_layers, file, text.format)
    _check_shapes(path, tensors)
    return OpenModel(path, architecture, model, tensors, text.quantization, None if vision is None else vision.path)


def _with_projections(path: Path, model: Model, projections: tuple[Projection, ...], num_labels: int) -> Model:
    """The model with dense layers behind its pooled texts; raises ModelError."""
    if not projections:
        return model
    # A decoder's texts are pooled piece by piece, and each piece goes through the layers.
    if not model.is_encoder and not all(projection.is_linear for projection in projections):
        raise ModelError(f"{path} has a dense layer with biases or tanh, which is not served behind a decoder")
    num_inputs = model.config.hidden_size
    for projection in projections:
        if projection.num_inputs != num_inputs:
            raise ModelError(f"{path}: a dense layer has {projection.num_inputs} inputs for {num_inputs} features")
        num_inputs = projection.num_outputs
    if model.num_labels and not num_labels:
        raise ModelError(f"{path} has dense layers beside a head of labels, which are not served together")
    changes: dict[str, Any] = {"projections": projections}
    if num_labels:
        changes["num_labels"] = num_labels
    return dataclasses.replace(model, config=dataclasses.replace(model.config, **changes))


def _check_shapes(path: Path, tensors: LeafTensors) -> None:
    """Raises ModelError if a tensor is missing, stored in an unsupported way, or not of its leaf's shape."""
    for leaf in tensors.leaves:
        for layer in tensors.of(leaf):
            for part, tensor in zip(leaf.parts, layer, strict=True):
                if tensor.shape != (part.padded_shape or part.shape):
                    raise ModelError(f"{path}: {tensor.name} has shape {tensor.shape}, expected {part.shape}")


def _of_base_model(name: str) -> str:
    return name.removeprefix(_PREFIX)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:_NUM_NAMES_SHOWN]))
    more = len(names) - _NUM_NAMES_SHOWN
    return ("tensor " if len(names) == 1 else "tensors ") + shown + (f" and {more} more" if more > 0 else "")
