"""Weights from a GGUF file into a parameter tree.

Each architecture states its leaves declaratively: which tensors of the file make a leaf, and how.
Source of the format: the GGUF specification of the ggml project.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from gguf import ReaderTensor
from gguf.quants import dequantize

from engine.gguf_file import GGUFFile, GGUFFileError
from engine.models import llama
from engine.types import Progress


class WeightsError(RuntimeError):
    """The file is no model that can be served; the message says why."""


@dataclass(frozen=True)
class Leaf:
    """How one leaf of the parameter tree is made.

    The named tensors, each stored [out, in], are joined along their outputs. A name with `{}`
    stands for one tensor a layer; such leaves are stacked over layers.
    """

    names: tuple[str, ...]
    transpose: bool = False  # to [in, out], so that products apply from the right
    unpermute: tuple[bool, ...] = ()  # for each name, whether rows are paired for adjacent-pair rotation


LLAMA_LAYERS: Mapping[str, Leaf] = {
    "attention_norm": Leaf(("blk.{}.attn_norm.weight",)),
    "qkv": Leaf(
        ("blk.{}.attn_q.weight", "blk.{}.attn_k.weight", "blk.{}.attn_v.weight"),
        transpose=True,
        unpermute=(True, True, False),
    ),
    "attention_output": Leaf(("blk.{}.attn_output.weight",), transpose=True),
    "mlp_norm": Leaf(("blk.{}.ffn_norm.weight",)),
    "gate_up": Leaf(("blk.{}.ffn_gate.weight", "blk.{}.ffn_up.weight"), transpose=True),
    "down": Leaf(("blk.{}.ffn_down.weight",), transpose=True),
}


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
            return float(self._field(f"{self.architecture}.{key}", default))

        if f"{self.architecture}.rope.scaling.type" in self._reader.fields:
            kind = self._field(f"{self.architecture}.rope.scaling.type")
            if kind != "none":
                raise WeightsError(f"rotary scaling of type {kind!r} is not served")
        if "rope_freqs.weight" in self._tensors:
            raise WeightsError("rotary frequency factors (rope_freqs.weight) are not served")
        hidden_size, num_heads = int(number("embedding_length")), int(number("attention.head_count"))
        head_dim = int(number("attention.key_length", hidden_size // num_heads))
        if int(number("rope.dimension_count", head_dim)) != head_dim:
            raise WeightsError("a rotary embedding over a part of the head is not served")
        return llama.LlamaConfig(
            vocab_size=int(self._tensor("token_embd.weight").shape[1]),
            hidden_size=hidden_size,
            intermediate_size=int(number("feed_forward_length")),
            num_layers=int(number("block_count")),
            num_heads=num_heads,
            num_kv_heads=int(number("attention.head_count_kv", num_heads)),
            head_dim=head_dim,
            context_length=int(number("context_length")),
            rope_theta=number("rope.freq_base", 10000.0),
            # Stored as float32: 1e-5 comes back as 9.99999974e-06.
            rms_norm_eps=float(f"{number('attention.layer_norm_rms_epsilon'):.6g}"),
        )

    def load(self, dtype: str, progress: Progress) -> llama.LlamaParams:
        """Reads all weights; `progress` counts bytes of the file.

        Raises:
            WeightsError: a tensor is missing or has an unexpected size.
        """
        done, total = 0, sum(int(tensor.n_bytes) for tensor in self._reader.tensors)

        def read(name: str) -> np.ndarray:
            nonlocal done
            tensor = self._tensor(name)
            array = _dequantize(tensor)
            done += int(tensor.n_bytes)
            progress("load weights", done, total)
            return array

        has_output = "output.weight" in self._tensors
        layers = {name: self._stack(leaf, read, dtype) for name, leaf in LLAMA_LAYERS.items()}
        return llama.LlamaParams(
            embedding=jnp.asarray(read("token_embd.weight"), dtype),
            layers=llama.LlamaLayers(**layers),
            output_norm=jnp.asarray(read("output_norm.weight"), dtype),
            output=jnp.asarray(read("output.weight"), dtype) if has_output else None,
        )

    def _tensor(self, name: str) -> ReaderTensor:
        if name not in self._tensors:
            raise WeightsError(f"the file has no tensor {name!r}")
        return self._tensors[name]

    def _stack(self, leaf: Leaf, read: Callable[[str], np.ndarray], dtype: str) -> jax.Array:
        """One leaf over all layers; written in place, so that no second copy of it is ever held."""
        num_layers = self.config.num_layers
        shapes = [tuple(reversed(self._tensor(name.format(0)).shape.tolist())) for name in leaf.names]
        joined = (sum(shape[0] for shape in shapes), *shapes[0][1:])
        stack = np.empty((num_layers, *(reversed(joined) if leaf.transpose else joined)), jnp.dtype(dtype))
        for index in range(num_layers):
            start = 0
            for position, name in enumerate(leaf.names):
                array = read(name.format(index))
                if array.shape != shapes[position]:
                    raise WeightsError(f"{name.format(index)} has shape {array.shape}, expected {shapes[position]}")
                if leaf.unpermute and leaf.unpermute[position]:
                    array = _unpermute(array, self.config.head_dim)
                end = start + array.shape[0]
                if leaf.transpose:
                    stack[index, :, start:end] = array.T
                else:
                    stack[index, start:end] = array
                start = end
        return jnp.asarray(stack)


def _dequantize(tensor: ReaderTensor) -> np.ndarray:
    """float32, in row-major order: the reverse of the order in which GGUF states dimensions."""
    try:
        array = dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError as error:
        raise WeightsError(f"{tensor.name}: the format {tensor.tensor_type.name} cannot be read") from error
    return array.astype(np.float32, copy=False).reshape(tuple(reversed(tensor.shape.tolist())))


def _unpermute(weight: np.ndarray, head_dim: int) -> np.ndarray:
    """Rows of each head from adjacent pairs (0, 1), (2, 3), … to halves (0, d/2), (1, d/2 + 1), …

    GGUF files of this architecture store queries and keys for a rotation of adjacent features.
    """
    pairs = weight.reshape(-1, head_dim // 2, 2, weight.shape[-1])
    return pairs.swapaxes(1, 2).reshape(weight.shape)
