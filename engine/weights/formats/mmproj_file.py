"""A GGUF file of an encoder of pictures (`mmproj`), which lies beside that of a text model; for engine and server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gguf import ReaderTensor

from engine.interface.errors import ModelError, naming
from engine.weights.formats.gguf_fields import GGUFFields
from engine.weights.formats.gguf_file import GGUFFile
from engine.weights.formats.image_processor import PROCESSOR_FILE
from engine.weights.formats.mmproj_kinds import NEWLINE, PROJECTORS, Stated
from engine.weights.formats.model_folder import JsonFile, ModelFolder

ARCHITECTURE = "clip"
TOKENS = "tokenizer.ggml.tokens"
# The types of numbers by which the name of a file is preferred to others, where a model may have several encoders.
PREFERRED_TYPES = ("f16", "bf16", "f32", "q8_0")


def is_mmproj_name(name: str) -> bool:
    """Whether a file is one of an encoder, by its name alone."""
    return name.endswith(".gguf") and "mmproj" in name.lower()


def is_of_pictures(name: str) -> bool:
    """Whether a tensor belongs to an encoder of pictures, by its name."""
    return name == NEWLINE or (name.startswith(("v.", "mm.")) and not name.startswith("mm.a."))


class OtherMmproj(ModelError):
    """The file belongs to another model, or is of a kind that is not served."""


class MmprojFile:
    """An open file, whose fields have the names of a folder's `config.json` and `preprocessor_config.json`."""

    def __init__(self, path: Path) -> None:
        """
        Raises:
            OtherMmproj: the file is no encoder of pictures, or of a kind that is not served.
            ModelError: it is damaged or cannot be read.
        """
        self.path = path
        self.kind: str  # a key of PROJECTORS
        try:
            file = GGUFFile(path)
        except OSError as error:
            raise ModelError(f"{path} cannot be read: {error.strerror}") from error
        with naming(path):
            architecture = file.value("general.architecture")
            if architecture != ARCHITECTURE:
                raise OtherMmproj(f"{path} is no encoder of pictures (mmproj): its architecture is {architecture!r}")
            self._fields = GGUFFields(file, ARCHITECTURE)
            self.tensors: dict[str, ReaderTensor] = {tensor.name: tensor for tensor in file.tensors}
            name = self._fields.text("vision.projector_type") or self._fields.text("projector_type") or ""
            if self._fields.flag("has_vision_encoder") is False or not any(map(is_of_pictures, self.tensors)):
                raise OtherMmproj(f"{path} is an encoder of sound ({name}), which is not served")
            if name not in PROJECTORS:
                served = ", ".join(PROJECTORS)
                raise OtherMmproj(f"{path} has the projector {name!r}, which is not served; this version has {served}")
            self.kind = name
            self.projector = PROJECTORS[name]
            self._stated = Stated(self._fields, self.tensors)
            self.num_features = self.projector.num_features(self._stated)  # of the text model
            self.num_layers = self._stated.num_layers
            if self.num_layers > len(self.tensors):
                raise ModelError(f"the file has {len(self.tensors)} tensors, too few for {self.num_layers} layers")
            read = {"model_type": self.projector.model_type, **self.projector.read(self._stated)}
            self.config = JsonFile(path, {**read, **self._stated.colours()})

    @property
    def has_frames(self) -> bool:
        """Whether a patch may cover several pictures of a video."""
        return self.kind.startswith("qwen")

    @property
    def names(self) -> frozenset[str]:
        """Of the tensors that belong to pictures and are read."""
        unused = self.projector.unused
        return frozenset(name for name in self.tensors if is_of_pictures(name) and not name.startswith(unused))

    @property
    def deep_layers(self) -> tuple[int, ...]:
        """As `Stated.deep_layers`."""
        return self._stated.deep_layers

    def token_ids(self, vocabulary: Sequence[object], of: Path) -> dict[str, int]:
        """The tokens of pictures by their keys in config.json.

        Args:
            of: the file of the text model, for messages.

        Raises:
            OtherMmproj: the vocabulary lacks one.
        """
        wanted = {mark: (mark,) for mark in self.projector.marks} | dict(self.projector.tokens)
        places = {
            name: index for index, name in enumerate(vocabulary) if isinstance(name, str) and name.endswith((">", "]"))
        }
        found = {}
        for key, names in wanted.items():
            token = next((places[name] for name in names if name in places), None)
            if token is None:
                raise OtherMmproj(
                    f"{self.path} is of another model than {of}, whose vocabulary has no token {names[0]!r}"
                )
            found[key] = token
        return {key: found[key] for key in self.projector.tokens}

    def as_folder(self, vocabulary: Sequence[str], of: Path) -> ModelFolder:
        """What a folder would say of the pictures; raises as `token_ids`."""
        with naming(self.path):
            processor = JsonFile(self.path, self.projector.processor(self._stated))
        return _StatedFolder(self.config.with_values(self.token_ids(vocabulary, of)), processor)


class _StatedFolder(ModelFolder):
    """What another file says in the place of a folder's."""

    def __init__(self, config: JsonFile, processor: JsonFile) -> None:
        self.path = config.path
        self.config = config
        self._processor = processor

    def json(self, name: str) -> JsonFile | None:
        """As `Folder.json`."""
        return self._processor if name == PROCESSOR_FILE else None
