"""A GGUF file of an encoder of pictures (`mmproj`), which lies beside that of a text model; for engine and server.

Source of names and fields: llama.cpp's tools/mtmd and its converter. What the file does not state, such as the size of
a window, is what the family's models were published with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf import ReaderTensor

from engine.interface.errors import ModelError, naming
from engine.interface.types import CLIP_MEAN, CLIP_STD
from engine.weights.formats.gguf_fields import GGUFFields
from engine.weights.formats.gguf_file import GGUFFile
from engine.weights.formats.model_folder import JsonFile, ModelFolder

ARCHITECTURE = "clip"
TOKENS = "tokenizer.ggml.tokens"
SECOND_FRAME = "v.patch_embd.weight.1"  # the matrix of a patch's second picture of a video

_HALVES = (0.5, 0.5, 0.5)
_PROCESSOR_FILE = "preprocessor_config.json"
_MOST = 1 << 16  # of any size
_POSITIONS = "v.position_embd.weight"
_DEEP = "v.deepstack."
# Where the file says nothing; source: the models that were published.
_GEMMA3_SCALE = 4
_QWEN_MERGE_SIZE = 2
_QWEN25_WINDOW = 112  # pixels on a side
_QWEN3_MIN_PIXELS = 1 << 16


def is_mmproj_name(name: str) -> bool:
    """Whether a file is one of an encoder, by its name alone."""
    return name.endswith(".gguf") and "mmproj" in name.lower()


class OtherMmproj(ModelError):
    """The file belongs to another model, or is of a kind that is not served."""


@dataclass(frozen=True)
class Projector:
    """A kind of encoder, by the end of which llama.cpp knows the family."""

    model_type: str  # of a folder, in config.json
    architectures: tuple[str, ...]  # of text models, in GGUF files
    # The tokens that config.json names by their ids; of several, the first that the vocabulary has.
    tokens: Mapping[str, tuple[str, ...]]
    # Further tokens that stand in the text of a picture.
    marks: tuple[str, ...] = ()
    mean: tuple[float, ...] = _HALVES  # of colours
    deviation: tuple[float, ...] = _HALVES


PROJECTORS: Mapping[str, Projector] = {
    "gemma3": Projector(
        "gemma3",
        ("gemma3",),
        {
            "boi_token_index": ("<start_of_image>",),
            "eoi_token_index": ("<end_of_image>",),
            # Most files leave out the last token of the vocabulary, whose embedding is never read.
            "image_token_index": ("<image_soft_token>", "<pad>"),
        },
    ),
    "idefics3": Projector(
        "idefics3", ("llama",), {"image_token_id": ("<image>",)}, ("<fake_token_around_image>", "<global-img>")
    ),
    "qwen2.5vl_merger": Projector(
        "qwen2_5_vl", ("qwen2vl",), {"image_token_id": ("<|image_pad|>",)}, mean=CLIP_MEAN, deviation=CLIP_STD
    ),
    "qwen3vl_merger": Projector("qwen3_vl", ("qwen3vl",), {"image_token_id": ("<|image_pad|>",)}),
}


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
            if self._fields.flag("has_vision_encoder") is False or not any(map(_is_of_pictures, self.tensors)):
                raise OtherMmproj(f"{path} is an encoder of sound ({name}), which is not served")
            if name not in PROJECTORS:
                served = ", ".join(PROJECTORS)
                raise OtherMmproj(f"{path} has the projector {name!r}, which is not served; this version has {served}")
            self.kind = name
            self.projector = PROJECTORS[name]
            self._check_colours()
            self.num_features = self._size("vision.projection_dim")  # of the text model
            self.num_layers = self._size("vision.block_count")
            if self.num_layers > len(self.tensors):
                raise ModelError(f"the file has {len(self.tensors)} tensors, too few for {self.num_layers} layers")
            self.config = JsonFile(path, {"model_type": self.projector.model_type, **self._read()})

    @property
    def has_frames(self) -> bool:
        """Whether a patch may cover several pictures of a video."""
        return self.kind.startswith("qwen")

    @property
    def names(self) -> frozenset[str]:
        """Of the tensors that belong to pictures."""
        return frozenset(filter(_is_of_pictures, self.tensors))

    @property
    def deep_layers(self) -> tuple[int, ...]:
        """The layers whose outputs the text model gets beside that of the last one, by the names of their tensors."""
        numbers = {name.removeprefix(_DEEP).partition(".")[0] for name in self.tensors if name.startswith(_DEEP)}
        if not all(number.isdecimal() and len(number) <= 5 for number in numbers):
            raise ModelError(f"{self.path} has a tensor {_DEEP}… without the number of a layer")
        return tuple(sorted(map(int, numbers)))

    def token_ids(self, vocabulary: Sequence[str], of: Path) -> dict[str, int]:
        """The tokens of pictures by their keys in config.json.

        Args:
            of: the file of the text model, for messages.

        Raises:
            OtherMmproj: the vocabulary lacks one.
        """
        wanted = {mark: (mark,) for mark in self.projector.marks} | dict(self.projector.tokens)
        places = {name: index for index, name in enumerate(vocabulary) if name.endswith(">")}
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
        return _StatedFolder(self.config.with_values(self.token_ids(vocabulary, of)), self._processor())

    def _read(self) -> dict[str, Any]:
        """What `config.json` has of the encoder; raises ModelError."""
        return self._of_qwen() if self.has_frames else self._of_siglip()

    def _of_siglip(self) -> dict[str, Any]:
        fields = self._fields
        if fields.flag("use_silu"):
            raise fields.error("use_silu", "this kind of encoder has GELU")
        image, patch = self._size("vision.image_size"), self._size("vision.patch_size")
        vision = {
            "hidden_size": self._size("vision.embedding_length"),
            "intermediate_size": self._size("vision.feed_forward_length"),
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self._size("vision.attention.head_count"),
            "image_size": image,
            "patch_size": patch,
            "layer_norm_eps": _shortest(fields.required_positive_number("vision.attention.layer_norm_epsilon")),
            "hidden_act": "gelu_pytorch_tanh" if fields.flag("use_gelu") else "quick_gelu",
        }
        key = "vision.projector.scale_factor"
        if self.kind == "idefics3":
            return {"vision_config": vision, "scale_factor": self._size(key)}
        scale = fields.integer(key, most=_MOST) or _GEMMA3_SCALE
        if image // patch % scale or image < patch:
            raise fields.error(key, f"it must divide the {image // patch} patches of a picture's side")
        return {"vision_config": vision, "mm_tokens_per_image": (image // patch // scale) ** 2}

    def _of_qwen(self) -> dict[str, Any]:
        fields, is_early = self._fields, self.kind == "qwen2.5vl_merger"
        activation = "use_gelu" if is_early else "use_silu"
        if fields.flag(activation):
            raise fields.error(activation, "this kind of encoder has the other activation")
        vision: dict[str, Any] = {
            "depth": self.num_layers,
            "hidden_size": self._size("vision.embedding_length"),
            "intermediate_size": self._size("vision.feed_forward_length"),
            "num_heads": self._size("vision.attention.head_count"),
            "patch_size": self._size("vision.patch_size"),
            "spatial_merge_size": fields.integer("vision.spatial_merge_size", most=_MOST) or _QWEN_MERGE_SIZE,
            "temporal_patch_size": 2 if SECOND_FRAME in self.tensors else 1,
            "out_hidden_size": self.num_features,
        }
        if is_early:
            period = self._size("vision.n_wa_pattern")  # the last of so many layers sees all
            vision["fullatt_block_indexes"] = list(range(period - 1, self.num_layers, period))
            vision["window_size"] = fields.integer("vision.window_size", most=_MOST) or _QWEN25_WINDOW
        else:
            positions = self.tensors.get(_POSITIONS)
            if positions is None:
                raise ModelError(f"the file has no tensor {_POSITIONS!r}")
            vision["num_position_embeddings"] = int(positions.shape[-1])
            vision["deepstack_visual_indexes"] = list(self.deep_layers)
        return {"vision_config": vision}

    def _processor(self) -> JsonFile:
        """What `preprocessor_config.json` has, as far as the file or the family says it."""
        fields, values = self._fields, dict[str, Any]()
        with naming(self.path):
            if self.kind == "idefics3":
                edge = fields.integer("vision.preproc_image_size")
                if edge is not None:
                    values["size"] = {"longest_edge": edge}
            elif self.has_frames:
                least = fields.integer("vision.image_min_pixels")
                if self.kind == "qwen3vl_merger":
                    least = least or _QWEN3_MIN_PIXELS
                values |= {"min_pixels": least, "max_pixels": fields.integer("vision.image_max_pixels")}
        return JsonFile(self.path, values)

    def _size(self, key: str) -> int:
        return self._fields.required_integer(key, least=1, most=_MOST)

    def _check_colours(self) -> None:
        for key, expected in (
            ("vision.image_mean", self.projector.mean),
            ("vision.image_std", self.projector.deviation),
        ):
            value = self._fields.value(key)
            if value is None:
                continue
            numbers = value if isinstance(value, list) else []
            if len(numbers) != len(expected) or not all(
                isinstance(each, float) and math.isclose(each, other, rel_tol=1e-5)
                for each, other in zip(numbers, expected, strict=True)
            ):
                raise self._fields.error(key, f"of this kind of encoder it must be {list(expected)}")


class _StatedFolder(ModelFolder):
    """What another file says in the place of a folder's."""

    def __init__(self, config: JsonFile, processor: JsonFile) -> None:
        self.path = config.path
        self.config = config
        self._processor = processor

    def json(self, name: str) -> JsonFile | None:
        """As `Folder.json`."""
        return self._processor if name == _PROCESSOR_FILE else None


def _is_of_pictures(name: str) -> bool:
    return name.startswith(("v.", "mm.")) and not name.startswith("mm.a.")


def _shortest(number: float) -> float:
    """A number that is stored as a float32, from which 1e-6 comes back as 9.99999997e-07."""
    return float(f"{number:.6g}")
