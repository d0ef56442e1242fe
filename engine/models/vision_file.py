"""The encoder of pictures of a GGUF model, in a file of its own: found, checked, and put beside the text model."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.interface.errors import ModelError, naming
from engine.models.encoders.vision_encoder import VisionEncoder
from engine.models.parts.gguf_config import read_count
from engine.models.parts.model import Model
from engine.models.vision_families import FAMILIES, QKV, Family
from engine.weights.encodings import EncodedRows
from engine.weights.formats.gguf_tensors import GGUFTensor, GGUFTensors
from engine.weights.formats.mmproj_file import (
    PREFERRED_TYPES,
    TOKENS,
    MmprojFile,
    OtherMmproj,
    is_mmproj_name,
    is_of_pictures,
)
from engine.weights.formats.mmproj_kinds import PROJECTORS, SECOND_FRAME
from engine.weights.leaf import Leaf, Part, Stored
from engine.weights.packing import Format
from engine.weights.tensors import FileTensor

_PATCH = "v.patch_embd.weight"
_UP, _DOWN = ".ffn_up.", ".ffn_down."
_MAX_NAMES_SHOWN = 3


@dataclass(frozen=True)
class VisionFile:
    """A file of an encoder that fits a text model."""

    mmproj: MmprojFile
    encoder: VisionEncoder
    family: Family
    architecture: str  # of the text model

    @property
    def path(self) -> Path:
        return self.mmproj.path

    def seen_by(self, model: Model) -> Model:
        """The text model with this encoder."""
        changes: dict[str, Any] = {"vision": self.encoder}
        decoder = self.family.decoders.get(self.architecture)
        return dataclasses.replace(model, **changes) if decoder is None else decoder(model.config, **changes)

    def with_gguf_names(self, leaf: Leaf) -> Leaf:
        """A leaf with the names of its tensors in GGUF files, which those of an encoder lack."""
        if all("gguf" in part.stored for part in leaf.parts):
            return leaf
        parts = tuple(made for part in leaf.parts for made in self._parts(part))
        layers = leaf.layers
        if any(part.stored["gguf"].name.startswith("v.deepstack.") for part in parts):
            layers = self.mmproj.deep_layers
        return dataclasses.replace(leaf, parts=parts, layers=layers)

    def check_names(self, leaves: tuple[Leaf, ...]) -> None:
        """Raises ModelError where the file has tensors of pictures that the encoder does not."""
        used = {SECOND_FRAME}
        for leaf in leaves:
            for part in leaf.parts:
                name = part.stored["gguf"].name
                used |= {name.format(layer=layer) for layer in (leaf.layers or (0,) if leaf.is_per_layer else (0,))}
        unknown = sorted(self.mmproj.names - used)
        if unknown:
            shown = ", ".join(map(repr, unknown[:_MAX_NAMES_SHOWN]))
            more = f" and {len(unknown) - _MAX_NAMES_SHOWN} more" if len(unknown) > _MAX_NAMES_SHOWN else ""
            raise ModelError(
                f"{self.mmproj.path} has what the encoder {self.mmproj.kind} does not: the tensors {shown}{more}"
            )

    def _parts(self, part: Part) -> tuple[Part, ...]:
        """A part of a folder's encoder with its name; queries, keys and values may be tensors of their own."""
        name = self._renamed(part.stored["safetensors"].name)
        if QKV in name and name.format(layer=0) not in self.mmproj.tensors:
            shape = (part.shape[0] // 3, *part.shape[1:])
            return tuple(Part(shape, {"gguf": Stored(name.replace(QKV, f"attn_{kind}"))}) for kind in "qkv")
        stored = Stored(name, self.family.transform(name, part, self.encoder))
        return (dataclasses.replace(part, stored={"gguf": stored}),)

    def _renamed(self, name: str) -> str:
        name, names = name.removeprefix(self.family.prefix), self.family.names
        if name in names:
            return names[name]
        place, _, suffix = name.rpartition(".")
        made = f"{names[place]}.{suffix}"
        for usual, other in self.family.other_names.items():
            changed = made.replace(usual, other)
            if made.format(layer=0) not in self.mmproj.tensors and changed.format(layer=0) in self.mmproj.tensors:
                made = changed
        # Converters of old have exchanged the names of the two products.
        if self._is_exchanged and _UP in made:
            return made.replace(_UP, _DOWN)
        return made.replace(_DOWN, _UP) if self._is_exchanged else made

    @property
    def _is_exchanged(self) -> bool:
        """Whether what is called the second product of a block has the inputs of the first one."""
        vision, down = self.mmproj.config.table("vision_config"), self.mmproj.tensors.get(f"v.blk.0{_DOWN}weight")
        if vision is None or down is None or len(down.shape) != 2:
            return False
        inner, feeding = vision.value("hidden_size"), vision.value("intermediate_size")
        return inner != feeding and tuple(map(int, down.shape)) == (inner, feeding)  # as stated: the inputs first


class WithVision:
    """A `TensorFile` of a text model and of its encoder."""

    def __init__(self, text: GGUFTensors, vision: MmprojFile) -> None:
        self._text, self._vision = text, vision
        self.names = text.names | vision.names

    def tensor(self, name: str) -> FileTensor | None:
        """A tensor by its name, or None; raises ModelError as that of the text model."""
        if not is_of_pictures(name):
            return self._text.tensor(name)
        stored = self._vision.tensors.get(name)
        if stored is None:
            raise ModelError(f"{self._vision.path} has no tensor {name!r}")
        if name != _PATCH or not self._vision.has_frames:
            return GGUFTensor(stored)
        second = self._vision.tensors.get(SECOND_FRAME)
        return _Frames(tuple(GGUFTensor(each) for each in (stored, second) if each is not None))


@dataclass(frozen=True)
class _Frames:
    """The matrix of patches [inner, colour, frame, row, column], of which a file holds each frame by itself."""

    frames: tuple[GGUFTensor, ...]
    format: Format = Format.BFLOAT16

    @property
    def name(self) -> str:
        return self.frames[0].name

    @property
    def shape(self) -> tuple[int, ...]:
        """A tensor of another shape keeps it, so that a check of shapes reports it."""
        shape = self.frames[0].shape
        if len(shape) != 4 or any(frame.shape != shape for frame in self.frames):
            return self.frames[-1].shape
        return (*shape[:2], len(self.frames), *shape[2:])

    @property
    def num_bytes(self) -> int:
        return sum(frame.num_bytes for frame in self.frames)

    def float32(self) -> np.ndarray:
        return np.stack([frame.float32() for frame in self.frames], axis=2)

    def encoded(self) -> EncodedRows | None:
        return None

    def expert(self, index: int) -> _Frames:
        return self


def find_vision_file(path: Path, file: GGUFTensors, model: Model, given: Path | None) -> VisionFile | None:
    """The encoder of a GGUF model: of the file that is given, or of one beside the model that fits it.

    Raises ModelError where that file is damaged, or the one that is given belongs to another model.
    """
    if given is not None:
        return _read(given, path, file, model)
    if not any(file.architecture in each.architectures for each in PROJECTORS.values()):
        return None  # a damaged file beside it is of no other model's concern
    for beside in _beside(path):
        try:
            return _read(beside, path, file, model)
        except OtherMmproj:
            continue
        except ModelError as error:
            raise ModelError(f"{error}; language_model_only serves the text model without this file") from error
    return None


def _beside(path: Path) -> list[Path]:
    """The encoders in the folder of a model, in the order in which they are tried."""
    try:
        found = [each for each in path.parent.iterdir() if is_mmproj_name(each.name) and each.is_file()]
    except OSError:
        return []
    words = _words(path.name)

    def rank(each: Path) -> tuple[int, int, str]:
        name = each.name.lower()
        of_type = (index for index, kind in enumerate(PREFERRED_TYPES) if re.search(rf"(^|[-_.]){kind}[-_.]", name))
        return -len(words & _words(each.name)), next(of_type, len(PREFERRED_TYPES)), name

    return sorted((each for each in found if each != path), key=rank)


def _words(name: str) -> set[str]:
    """The parts of a file's name, without its type."""
    return {word for word in re.split(r"[-_.]", name.lower()) if word and word not in ("gguf", *PREFERRED_TYPES)}


def _read(mmproj: Path, path: Path, file: GGUFTensors, model: Model) -> VisionFile:
    """The encoder in a file, for the text model of `path`; raises OtherMmproj or ModelError."""
    vision = MmprojFile(mmproj)
    if file.architecture not in vision.projector.architectures:
        raise OtherMmproj(
            f"{mmproj} has the projector {vision.kind!r}, for text models of the architecture "
            f"{' or '.join(vision.projector.architectures)}; that of {path} is {file.architecture}"
        )
    hidden_size = model.config.hidden_size
    if vision.num_features != hidden_size:
        raise OtherMmproj(
            f"{mmproj} is of another model than {path}: a picture's embeddings have {vision.num_features} features, "
            f"those of its tokens {hidden_size}"
        )
    vocabulary = file.value(TOKENS)
    vision.token_ids(vocabulary if isinstance(vocabulary, list) else [], path)
    family = FAMILIES[vision.kind]
    refusal = family.refusal(file, model.config)
    if refusal:
        raise OtherMmproj(f"{path} cannot see with {mmproj}: {refusal}")
    with naming(mmproj):
        encoder = family.read(vision.config, frozenset(family.first), model.config)
    if encoder is None:
        raise ModelError(f"{mmproj} has no encoder of pictures")
    num_deep = read_count(file, "n_deepstack_layers")
    if encoder.num_deep != num_deep:
        raise OtherMmproj(
            f"{mmproj} is of another model than {path}: it has deep stack in {encoder.num_deep} layers, "
            f"and the text model takes it in {num_deep}"
        )
    found = VisionFile(vision, encoder, family, file.architecture)
    found.check_names(tuple(map(found.with_gguf_names, encoder.leaves())))
    return found
