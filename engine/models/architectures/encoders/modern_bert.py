"""The ModernBERT architecture (Warner et al., "Smarter, Better, Faster, Longer", 2024)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from cache.storage import KVPages
from engine.backends.base.backend import Backends
from engine.backends.base.operands import Activation
from engine.backends.base.token_layout import TokenLayout
from engine.interface.types import Pooling
from engine.models.parts import gguf_config
from engine.models.parts.encoders.encoder import Encoder, Names
from engine.models.parts.encoders.encoder_config import (
    EncoderConfig,
    num_rows,
    read_activation,
    read_num_labels,
    read_sizes_of_encoder,
)
from engine.models.parts.folder_config import Sizes, read_epsilon
from engine.models.parts.model import Carry, run_layers
from engine.models.parts.projections import dense
from engine.models.parts.rotary import Rotary
from engine.models.parts.rotary_config import kind_of, read_rotaries_of_kinds, read_rotary_of_gguf
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params
from engine.weights.leaf import Leaf, LeafKind, Part, Stored
from engine.weights.tensors import rows

_THETA, _LOCAL_THETA = 160_000.0, 10_000.0
_PERIOD = 3  # the first of so many layers sees all
_WINDOW = 128  # tokens of a local layer, half of them on either side
_LOCAL, _FULL = "sliding_attention", "full_attention"
_ACTIVATIONS: Mapping[Activation, Callable[[jax.Array], jax.Array]] = {
    Activation.GELU_ERF: partial(jax.nn.gelu, approximate=False),
    Activation.GELU_TANH: partial(jax.nn.gelu, approximate=True),
    Activation.SILU: jax.nn.silu,
}
_POOLINGS = {"cls": Pooling.CLS, "mean": Pooling.MEAN}


@dataclass(frozen=True)
class ModernBert(Encoder):
    """Norms before the blocks, gates, no biases; most layers see a window of the text."""

    layer_name: ClassVar[str] = "layers"

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        return cls(_read(config, tensor_names))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        return cls(_read_gguf(file))

    def leaves(self) -> tuple[Leaf, ...]:
        config, hidden, inner = self.config, self.config.hidden_size, self.config.intermediate_size
        others = tuple(range(1, config.num_layers))
        words = self._part((config.vocab_size, hidden), ("embeddings.tok_embeddings", "token_embd"))
        return (
            Leaf("embedding", LeafKind.EMBEDDING, (words,), is_per_layer=False),
            *self._weights("embedding_norm", ("embeddings.norm", "token_embd_norm"), is_per_layer=False),
            # The first layer has none.
            *(self._weights("attention_norm", ("attn_norm", "attn_norm"), layers=others) if others else ()),
            *self._product("qkv", 3 * hidden, hidden, ("attn.Wqkv", "attn_qkv")),
            *self._product("attention_output", hidden, hidden, ("attn.Wo", "attn_output")),
            *self._weights("mlp_norm", ("mlp_norm", "ffn_norm")),
            Leaf("up", LeafKind.GATED, tuple(self._half((inner, hidden), index) for index in range(2))),
            *self._product("down", hidden, inner, ("mlp.Wo", "ffn_down")),
            *self._weights("output_norm", ("final_norm", "output_norm"), is_per_layer=False),
        )

    def forward(
        self, params: Params, tokens: jax.Array, kv: KVPages, layout: TokenLayout, backends: Backends
    ) -> tuple[jax.Array, KVPages]:
        """As `Model.forward`; the hidden states are normalised."""
        config, products = self.config, backends.products
        constants = self.attention_constants(layout)
        mlp_norm = self.norm_of(params, "mlp_norm")

        def layer(index: jax.Array, carry: Carry, *, is_first: bool) -> Carry:
            x, kv = carry
            # The first layer reads what is normed already.
            read = x if is_first else products.norm(x, self.norm_of(params, "attention_norm"), index - 1, layout)
            qkv = products.norm_product(read, None, params["qkv"], index, layout)
            attended, kv = backends.attention(qkv, kv, index, layout, constants)
            x = products.add_product(x, attended, params["attention_output"], index, layout)
            inner = products.norm_product(
                x, mlp_norm, params["up"], index, layout, activation=config.activation, is_gated=True
            )
            return products.add_product(x, inner, params["down"], index, layout), kv

        words = products.embed(params["embedding"], tokens, layout)
        x = products.norm(words, self.norm_of(params, "embedding_norm"), jnp.int32(0), layout)
        x, kv = run_layers(partial(layer, is_first=True), 1, x, kv)
        if config.num_layers > 1:
            x, kv = run_layers(partial(layer, is_first=False), config.num_layers - 1, x, kv, first=1)
        return products.norm(x, self.norm_of(params, "output_norm"), jnp.int32(0), layout), kv

    def _weights(
        self, leaf: str, names: Names, *, is_per_layer: bool = True, layers: tuple[int, ...] | None = None
    ) -> list[Leaf]:
        """Of a norm without biases."""
        part = (self._in_layers if is_per_layer else self._part)((self.config.hidden_size,), names)
        return [Leaf(leaf, LeafKind.VECTOR, (part,), is_per_layer=is_per_layer, layers=layers)]

    def _half(self, shape: tuple[int, int], index: int) -> Part:
        """The gates, 0, or what they multiply, 1; files have both in one tensor."""
        size = shape[0]
        joined = self._in_layers(shape, ("mlp.Wi", "ffn_up"))
        take = rows(index * size, (index + 1) * size, 2 * size)
        return replace(joined, stored={name: replace(each, transform=take) for name, each in joined.stored.items()})


@dataclass(frozen=True)
class ModernBertClassifier(ModernBert):
    """The same with a head for labels: a dense layer with an activation and a norm, and the labels'."""

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        pooling = config.text("classifier_pooling") or "cls"
        if pooling not in _POOLINGS:
            raise config.error("classifier_pooling", f"it must be one of {', '.join(_POOLINGS)}")
        return cls(
            replace(
                _read(config, tensor_names),
                num_labels=read_num_labels(config),
                head_pooling=_POOLINGS[pooling],
                head_activation=read_activation(config, "classifier_activation"),
            )
        )

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        return cls(replace(_read_gguf(file), num_labels=num_rows(file, "cls.output.weight")))

    def leaves(self) -> tuple[Leaf, ...]:
        hidden, labels = self.config.hidden_size, self.config.num_labels
        parts = {
            "head_dense": _part((hidden, hidden), "head.dense.weight", "cls.weight"),
            "head_norm": _part((hidden,), "head.norm.weight", "cls.norm.weight"),
            "head_output": _part((labels, hidden), "classifier.weight", "cls.output.weight"),
            "head_output_bias": _part((labels,), "classifier.bias", "cls.output.bias"),
        }
        if self.config.has_head_bias:
            parts["head_dense_bias"] = _part((hidden,), "head.dense.bias", "cls.bias")
        leaves = (Leaf(name, LeafKind.VECTOR, (part,), is_per_layer=False) for name, part in parts.items())
        return (*super().leaves(), *leaves)

    def pooled(self, params: Params, vectors: jax.Array) -> jax.Array:
        inner = _ACTIVATIONS[self.config.head_activation](dense(params, "head_dense", vectors))
        centred = inner - jnp.mean(inner, axis=1, keepdims=True)
        scale = jax.lax.rsqrt(jnp.mean(centred * centred, axis=1, keepdims=True) + self.config.layer_norm_eps)
        return dense(params, "head_output", centred * scale * params["head_norm"][0].astype(jnp.float32))


def _read(config: JsonFile, tensor_names: Set[str]) -> EncoderConfig:
    for name in ("norm_bias", "attention_bias", "mlp_bias"):
        if config.flag(name):
            raise config.error(name, "this architecture is served without biases")
    scaling = config.table("rope_scaling")
    if scaling is not None and kind_of(scaling) != "default":
        raise config.error("rope_scaling", "of this architecture rope_parameters says it, for each kind of layer")
    sizes = read_sizes_of_encoder(config)
    old_names = config.with_values({"rope_theta": config.positive_number("global_rope_theta") or _THETA})
    rotaries = read_rotaries_of_kinds(
        old_names, sizes["head_dim"], sizes["context_length"],
        local_theta=config.positive_number("local_rope_theta") or _LOCAL_THETA,
    )  # fmt: skip
    return _config(
        sizes, rotaries, _are_local(config, sizes["num_layers"]),
        config.integer("local_attention", least=2) or _WINDOW,
        layer_norm_eps=read_epsilon(config, "norm_eps", 1e-5),
        activation=read_activation(config, "hidden_activation"),
        prefix="model." if "model.embeddings.tok_embeddings.weight" in tensor_names else "",
        has_head_bias=config.flag("classifier_bias") is True,
    )  # fmt: skip


def _are_local(config: JsonFile, num_layers: int) -> Sequence[bool]:
    kinds = config.value("layer_types")
    if kinds is None:
        period = config.integer("global_attn_every_n_layers", least=1) or _PERIOD
        return [index % period > 0 for index in range(num_layers)]
    if not isinstance(kinds, list) or len(kinds) != num_layers or any(kind not in (_LOCAL, _FULL) for kind in kinds):
        raise config.error("layer_types", f"it must list {_LOCAL} or {_FULL} for {num_layers} layers")
    return [kind == _LOCAL for kind in kinds]


def _read_gguf(file: GGUFTensors) -> EncoderConfig:
    fields = file.fields
    if fields.value("attention.causal") is True:
        raise fields.error("attention.causal", "an encoder sees its whole text")
    sizes = gguf_config.read_sizes(file)
    full, local = (
        read_rotary_of_gguf(file, sizes["head_dim"], sizes["context_length"], base_key=key)
        for key in ("rope.freq_base", "rope.freq_base_swa")
    )
    num_layers, pattern = sizes["num_layers"], "attention.sliding_window_pattern"
    if isinstance(fields.value(pattern), list):
        are_local = [window > 0 for window in gguf_config.read_windows(file, num_layers, period=_PERIOD)]
    else:
        period = fields.integer(pattern) or _PERIOD
        are_local = [index % period > 0 for index in range(num_layers)]
    return _config(
        sizes, (full, local), are_local,
        gguf_config.read_window(file) or _WINDOW,
        layer_norm_eps=gguf_config.read_epsilon(file, "attention.layer_norm_epsilon"),
        activation=Activation.GELU_ERF,
        has_head_bias="cls.bias" in file.names,
    )  # fmt: skip


def _config(
    sizes: Sizes, rotaries: tuple[Rotary, Rotary], are_local: Sequence[bool], window: int, **others: Any
) -> EncoderConfig:
    return EncoderConfig(
        **sizes,
        num_token_types=0,
        has_biases=False,
        is_gated=True,
        rotary=rotaries,
        tables=tuple(map(int, are_local)),
        windows=tuple((window // 2 + 1) * is_local for is_local in are_local),
        **others,
    )


def _part(shape: tuple[int, ...], in_folder: str, in_gguf: str) -> Part:
    return Part(shape, {"safetensors": Stored(in_folder), "gguf": Stored(in_gguf)})
