"""Weights from a GGUF file. Source of the format: the GGUF specification of the ggml project."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, ReaderTensor
from gguf.quants import dequantize

from engine.border.types import Progress
from engine.models import llama
from engine.weights.formats.gguf_file import GGUFFile, GGUFFileError
from engine.weights.formats.gguf_quants import FORMATS, quantised
from engine.weights.loader import TensorNames, WeightsError, WeightsFormat, load_params
from engine.weights.packing import Format, Quantised

NAMES = TensorNames(
    attention_norm="blk.{}.attn_norm.weight",
    qkv=("blk.{}.attn_q.weight", "blk.{}.attn_k.weight", "blk.{}.attn_v.weight"),
    attention_output=("blk.{}.attn_output.weight",),
    mlp_norm="blk.{}.ffn_norm.weight",
    gate_up=("blk.{}.ffn_gate.weight", "blk.{}.ffn_up.weight"),
    down=("blk.{}.ffn_down.weight",),
    embedding="token_embd.weight",
    output_norm="output_norm.weight",
    output="output.weight",
)

# Files of this architecture store queries and keys for a rotation of adjacent features.
_PAIRED = (".attn_q.weight", ".attn_k.weight")

_SIZE_LIMIT = 1 << 31  # an int32 on the device holds less


@dataclass(frozen=True)
class GGUFTensor:
    """A tensor of a file, with queries and keys in the order in which they are rotated here."""

    stored: ReaderTensor
    paired_head_dim: int | None  # of a matrix whose rows are paired for adjacent-pair rotation

    @property
    def name(self) -> str:
        return self.stored.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Row-major: the reverse of the order in which GGUF states dimensions."""
        return tuple(reversed(self.stored.shape.tolist()))

    @property
    def num_bytes(self) -> int:
        return int(self.stored.n_bytes)

    @property
    def format(self) -> Format:
        return FORMATS.get(self.stored.tensor_type, Format.BFLOAT16)

    def float32(self) -> np.ndarray:
        """
        Raises:
            WeightsError: the format cannot be read.
        """
        kind = self.stored.tensor_type
        try:
            array = dequantize(self.stored.data, kind)
        except NotImplementedError as error:
            raise WeightsError(f"{self.stored.name}: the format {kind.name} cannot be read") from error
        array = array.astype(np.float32, copy=False).reshape(self.shape)
        return array if self.paired_head_dim is None else array[_halves_of_pairs(self.shape[0], self.paired_head_dim)]

    def quantised(self) -> Quantised:
        rows = np.asarray(self.stored.data).view(np.uint8).reshape(self.shape[0], -1)
        matrix = quantised(rows, GGMLQuantizationType(self.stored.tensor_type))
        if self.paired_head_dim is None:
            return matrix
        return matrix.reordered(_halves_of_pairs(self.shape[0], self.paired_head_dim))


def _halves_of_pairs(num_rows: int, head_dim: int) -> np.ndarray:
    """The order of rows in which each head's adjacent pairs (0, 1), (2, 3), … are halves (0, d/2), (1, d/2 + 1), …"""
    return np.arange(num_rows).reshape(-1, head_dim // 2, 2).swapaxes(1, 2).ravel()


class GGUFModel:
    """An open GGUF file: its configuration, and its tensors as they are asked for."""

    def __init__(self, path: Path) -> None:
        """Raises:
        WeightsError: the file is no GGUF file, or of an architecture that is not served.
        """
        try:
            self._reader = GGUFFile(path)
        except (GGUFFileError, OSError) as error:
            raise WeightsError(str(error)) from error
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self.architecture = str(self._field("general.architecture"))
        if self.architecture != "llama":
            raise WeightsError(f"the architecture {self.architecture!r} is not served; this version serves 'llama'")
        self.config = self._read_config()

    def _field(self, key: str, default: int | float | None = None) -> str | int | float:
        value = self._reader.value(key)
        if isinstance(value, str | int | float):
            return value
        if value is not None or default is None:
            raise WeightsError(f"the file has no field {key!r} of one value")
        return default

    def _read_config(self) -> llama.LlamaConfig:
        def number(key: str, default: int | float | None = None) -> float:
            value = self._field(f"{self.architecture}.{key}", default)
            if isinstance(value, str) or not 0 < value < math.inf:
                raise WeightsError(f"the field '{self.architecture}.{key}' is {value}; it must be a number above 0")
            return float(value)

        def size(key: str, default: int | None = None) -> int:
            value = number(key, default)
            if value >= _SIZE_LIMIT or value != int(value):
                raise WeightsError(f"the field '{self.architecture}.{key}' is {value}; it must be an int32 above 0")
            return int(value)

        if f"{self.architecture}.rope.scaling.type" in self._reader.fields:
            kind = self._field(f"{self.architecture}.rope.scaling.type")
            if kind != "none":
                raise WeightsError(f"rotary scaling of type {kind!r} is not served")
        if "rope_freqs.weight" in self._tensors:
            raise WeightsError("rotary frequency factors (rope_freqs.weight) are not served")
        hidden_size, num_heads = size("embedding_length"), size("attention.head_count")
        num_kv_heads = size("attention.head_count_kv", num_heads)
        if num_heads % num_kv_heads:
            raise WeightsError(f"{num_heads} heads cannot share {num_kv_heads} heads of keys evenly")
        head_dim = size("attention.key_length", hidden_size // num_heads)
        if head_dim % 2:
            raise WeightsError(f"the head dimension is {head_dim}; rotary embedding needs an even one")
        if size("rope.dimension_count", head_dim) != head_dim:
            raise WeightsError("a rotary embedding over a part of the head is not served")
        embedding = self._stored(NAMES.embedding).shape.tolist()
        if len(embedding) != 2:
            raise WeightsError(f"{NAMES.embedding} is no matrix")
        num_layers = size("block_count")
        if num_layers > len(self._tensors):
            raise WeightsError(f"the file has {len(self._tensors)} tensors, too few for {num_layers} layers")
        return llama.LlamaConfig(
            vocab_size=embedding[1],
            hidden_size=hidden_size,
            intermediate_size=size("feed_forward_length"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            context_length=size("context_length"),
            rope_theta=number("rope.freq_base", 10000.0),
            # Stored as float32: 1e-5 comes back as 9.99999974e-06.
            rms_norm_eps=float(f"{number('attention.layer_norm_rms_epsilon'):.6g}"),
        )

    def load(self, wanted: WeightsFormat, progress: Progress) -> llama.LlamaParams:
        """Reads all weights; `progress` counts bytes of the file.

        Raises:
            WeightsError: a tensor is missing or has an unexpected size.
        """
        self._check_shapes()
        return load_params(NAMES, self.config, self.tensor, wanted, progress)

    def _check_shapes(self) -> None:
        for name, shape in NAMES.shapes(self.config).items():
            tensor = self.tensor(name)
            if tensor is not None and tensor.shape != shape:
                raise WeightsError(f"{name} has shape {tensor.shape}, expected {shape}")

    def tensor(self, name: str) -> GGUFTensor | None:
        """A tensor by its name, or None where the file has no such tensor."""
        stored = self._tensors.get(name)
        if stored is None:
            return None
        return GGUFTensor(stored, self.config.head_dim if name.endswith(_PAIRED) else None)

    def _stored(self, name: str) -> ReaderTensor:
        if name not in self._tensors:
            raise WeightsError(f"the file has no tensor {name!r}")
        return self._tensors[name]
