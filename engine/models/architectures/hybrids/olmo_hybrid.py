"""The OLMo Hybrid architecture (Ai2, "Olmo Hybrid", 2026): gated delta-nets in most layers, OLMo 3's in the others."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import jax

from cache.storage import KVPages
from engine.backends.base.backend import Backends, Products
from engine.backends.base.operands import AttentionConstants, GatedDelta, Norm
from engine.backends.base.token_layout import TokenLayout
from engine.interface.errors import ModelError
from engine.models.parts import folder_config
from engine.models.parts.decoder import Decoder, Names, QueryKeyNorm, in_layers
from engine.models.parts.hybrids.delta_config import DeltaConfig, DeltaSizes, read_kinds
from engine.models.parts.hybrids.delta_decoder import DeltaDecoder
from engine.models.parts.rotary_config import read_rotary
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params
from engine.weights.leaf import Leaf, LeafKind, Part, Stored
from engine.weights.tensors import NegativeExponential, Squeezed, Transform

# Of the norms in delta-nets, whatever the configuration says of the others; source: transformers' class.
_DELTA_EPSILON = 1e-5
_NO_GGUF = ""  # files of the format have no name for the architecture


@dataclass(frozen=True, kw_only=True)
class OlmoHybridConfig(DeltaConfig):
    """A decoder's with delta-nets."""

    beta_scale: float  # multiplies what a state forgets of a key; 2 lets it turn around


@dataclass(frozen=True)
class OlmoHybrid(DeltaDecoder):
    """Norms before both blocks of layers with delta-nets, and after those of layers with attention, without gates."""

    config: OlmoHybridConfig
    # The names of norms and convolutions differ between releases; they say nothing about the model itself.
    tensor_names: frozenset[str] = field(default=frozenset(), compare=False)

    norms: ClassVar[Mapping[str, Names]] = {}
    query_key_norm = QueryKeyNorm.ALL

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        if folder_config.read_flag(config, "attention_bias", False):
            raise config.error("attention_bias", "biases are not served")
        sizes = folder_config.read_sizes(config)
        table = config.table("rope_parameters")
        rotates = table is None or "rope_theta" not in table.names or table.value("rope_theta") is not None
        rotary = read_rotary(config, sizes["head_dim"], sizes["context_length"])
        usual = folder_config.read_decoder(config, tensor_names, "olmo_hybrid", rotary=rotary)
        usual = replace(usual, tables=(0 if rotates else -1,) * usual.num_layers)
        num_heads = config.integer("linear_num_key_heads", least=1) or usual.num_heads
        key_dim = config.integer("linear_key_head_dim", least=1) or int(0.75 * usual.hidden_size / num_heads)
        delta = DeltaSizes(
            num_key_heads=num_heads,
            num_heads=config.integer("linear_num_value_heads", least=1) or usual.num_heads,
            key_dim=key_dim,
            value_dim=config.integer("linear_value_head_dim", least=1) or 2 * key_dim,
            kernel=config.integer("linear_conv_kernel_dim", least=1) or 4,
        )
        scale = 2.0 if folder_config.read_flag(config, "linear_allow_neg_eigval", True) else 1.0
        kinds = read_kinds(config, usual.num_layers)
        made = OlmoHybridConfig(**vars(usual), delta=delta, is_recurrent=kinds, beta_scale=scale)
        return cls(made, tensor_names=frozenset(tensor_names))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        raise ModelError("no GGUF files of OLMo Hybrid are known")

    def norm_transform_of_folder(self) -> Transform | None:
        return None

    def attention_leaves(self) -> list[Leaf]:
        config, hidden = self.config, self.config.hidden_size
        recurrent, attending = config.recurrent_layers, config.attention_layers
        before = {
            "delta_input_norm": self._stored(recurrent, "attention_layer_norm", "input_layernorm"),
            "mlp_norm": self._stored(recurrent, "feedforward_layer_norm", "post_attention_layernorm"),
        }
        after = {
            # transformers writes it by the name that the other layers have for another norm.
            "attention_output_norm": self._stored(attending, "feedforward_layer_norm", "post_attention_layernorm"),
            "down_norm": ("post_feedforward_layernorm", _NO_GGUF),
        }
        of_delta = [leaf for name, names in before.items() for leaf in self.norm_leaves(name, hidden, names)]
        of_attention = [leaf for name, names in after.items() for leaf in self.norm_leaves(name, hidden, names)]
        return [
            *(replace(leaf, layers=recurrent) for leaf in (*of_delta, *self.delta_leaves())),
            *(replace(leaf, layers=attending) for leaf in (*of_attention, *Decoder.attention_leaves(self))),
        ]

    def qkv_parts(self, inputs: int | None) -> tuple[Part, ...]:
        return Decoder.qkv_parts(self, inputs)

    def delta_leaves(self) -> list[Leaf]:
        hidden, delta = self.config.hidden_size, self.config.delta
        sizes = {"q": delta.key_size, "k": delta.key_size, "v": delta.value_size, "g": delta.value_size}

        def matrix(kind: str, num_outputs: int, inputs: int = hidden) -> Part:
            return in_layers((num_outputs, inputs), (f"linear_attn.{kind}_proj", _NO_GGUF))

        def exact(leaf: str, shape: tuple[int, ...], name: str, transform: Transform | None = None) -> Leaf:
            return Leaf(leaf, LeafKind.VECTOR, (_part(shape, name, transform),), is_exact=True)

        heads = (delta.num_heads,)
        return [
            Leaf("delta_qkvz", LeafKind.MATRIX, tuple(matrix(kind, size) for kind, size in sizes.items())),
            Leaf("delta_beta", LeafKind.MATRIX, (matrix("b", delta.num_heads),), is_exact=True),
            Leaf("delta_alpha", LeafKind.MATRIX, (matrix("a", delta.num_heads),), is_exact=True),
            Leaf("delta_convolution", LeafKind.VECTOR, self._convolution_parts(), is_exact=True),
            exact("delta_decay", heads, "A_log", NegativeExponential),
            exact("delta_time_bias", heads, "dt_bias"),
            exact("delta_norm", (delta.value_dim,), "o_norm.weight"),
            Leaf("delta_out", LeafKind.MATRIX, (matrix("o", hidden, delta.value_size),)),
        ]

    def _convolution_parts(self) -> tuple[Part, ...]:
        delta = self.config.delta
        if any(name.endswith(".linear_attn.conv1d.weight") for name in self.tensor_names):
            return (_part((delta.num_channels, delta.kernel), "conv1d.weight", Squeezed),)
        sizes = {"q": delta.key_size, "k": delta.key_size, "v": delta.value_size}
        return tuple(_part((size, delta.kernel), f"{kind}_conv1d.weight", Squeezed) for kind, size in sizes.items())

    def _stored(self, layers: tuple[int, ...], *names: str) -> Names:
        """That of the names by which the folder holds a norm of these layers."""
        has = (name for name in names if f"model.layers.{layers[0]}.{name}.weight" in self.tensor_names)
        return next(has, names[-1]), _NO_GGUF

    def delta_constants(self, params: Params) -> GatedDelta:
        norm = Norm(params["delta_norm"], _DELTA_EPSILON)
        return replace(super().delta_constants(params), norm=norm, beta_scale=self.config.beta_scale)

    def attention_layer(
        self, attending: jax.Array, carry: tuple[jax.Array, KVPages], params: Params, layout: TokenLayout,
        backends: Backends, constants: AttentionConstants,
    ) -> tuple[jax.Array, KVPages]:  # fmt: skip
        (x, kv), products = carry, backends.products
        qkv = products.norm_product(x, None, params["qkv"], attending, layout)
        attended, kv = backends.attention(qkv, kv, attending, layout, constants)
        return self.added(x, attended, "attention_output", params, attending, layout, products), kv

    def behind(
        self, is_recurrent: bool, place: jax.Array, index: jax.Array, x: jax.Array, params: Params,
        layout: TokenLayout, products: Products,
    ) -> jax.Array:  # fmt: skip
        config, inputs = self.config, x
        if is_recurrent:
            inputs = products.norm(x, Norm(params["mlp_norm"], config.rms_norm_eps), place, layout)
        mixed = products.norm_product(
            inputs, None, params["gate_up"], index, layout, activation=config.activation, is_gated=True
        )
        if is_recurrent:
            return products.add_product(x, mixed, params["down"], index, layout)
        product = products.norm_product(mixed, None, params["down"], index, layout)
        return x + products.norm(product, Norm(params["down_norm"], config.rms_norm_eps), place, layout)


def _part(shape: tuple[int, ...], name: str, transform: Transform | None = None) -> Part:
    return Part(shape, {"safetensors": Stored(f"model.layers.{{layer}}.linear_attn.{name}", transform)})
