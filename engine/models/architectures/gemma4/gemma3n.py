"""The Gemma 3n architecture (Gemma Team, "Gemma 3n", 2025), text only."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from engine.backends.base.backend import Products
from engine.backends.base.even_sums import multiplied, summed
from engine.backends.base.norms import of_layer
from engine.backends.base.token_layout import TokenLayout
from engine.interface.errors import ModelError
from engine.models.architectures.gemma4.config import Gemma4Config, HeadSizes, made
from engine.models.architectures.gemma4.decoder import Gemma4, LayerKind, Step, Stream
from engine.models.parts import folder_config, gguf_config, rotary
from engine.models.parts.decoder import Names, in_layers
from engine.models.parts.decoder_config import DecoderConfig
from engine.models.parts.rotary import Rotary
from engine.models.parts.rotary_config import read_rotaries_of_kinds, read_rotary_of_gguf
from engine.models.parts.routing import Routing
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params
from engine.weights.leaf import Leaf, LeafKind, Part, Stored

_PERIOD = 5  # the last of so many layers sees all, where a file does not say
_LOCAL_THETA = 10_000.0
_MOST_STREAMS = 16
_LEAST_SQUARE = 1e-5  # of a stream, when it is given the magnitude of another
# Where config.json says nothing, as those of models with pictures do; source: transformers' Gemma3nTextConfig.
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 262_400, "hidden_size": 2048, "intermediate_size": 16_384, "num_hidden_layers": 35,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "max_position_embeddings": 32_768,
    "sliding_window": 512, "final_logit_softcapping": 30.0, "vocab_size_per_layer_input": 262_144,
    "hidden_size_per_layer_input": 256, "altup_active_idx": 0, "altup_num_inputs": 4, "num_kv_shared_layers": 15,
    "laurel_rank": 64, "rope_theta": 1_000_000.0,
}  # fmt: skip
# The layers whose gates are mostly 0, and what share of them is, where a file does not say; as llama.cpp has it.
_NUM_SPARSE, _SPARSITY = 10, 0.95
_NUM_UNSHARED = 20  # layers with keys and values of their own, where a GGUF file does not say


@dataclass(frozen=True, kw_only=True)
class Gemma3nConfig(Gemma4Config):
    """Gemma 4's, with several residual streams."""

    num_streams: int
    active_stream: int  # that layers read
    laurel_rank: int
    num_sparse: int  # the first layers, of whose gates most are 0
    gate_cutoff: float  # in standard deviations above the mean of a token's gates, below which they are 0
    layer_vocab_size: int  # the first tokens, which have embeddings by layer; others have that of token 0

    def __post_init__(self) -> None:
        """Raises ModelError for streams that no model has."""
        if not 2 <= self.num_streams <= _MOST_STREAMS or self.active_stream >= self.num_streams:
            raise ModelError(
                f"there are {self.num_streams} residual streams, of which number {self.active_stream} is active; from "
                f"2 to {_MOST_STREAMS} are served, and the active one must be among them"
            )

    @property
    def product_inputs(self) -> dict[str, int]:
        """As `ModelConfig.product_inputs`."""
        return {**super().product_inputs, "augmented residuals": self.laurel_rank}

    @property
    def joined_outputs(self) -> dict[str, int]:
        """As `ModelConfig.joined_outputs`."""
        return {**super().joined_outputs, "intermediate": self.intermediate_size}


@dataclass(frozen=True)
class Gemma3n(Gemma4):
    """Gemma 4's layers of one head size, between which several residual streams run.

    They are predicted before a layer and corrected behind it (Baykal et al., "Alternating Updates for Efficient
    Transformers", 2023). A product of low rank runs beside attention.
    """

    config: Gemma3nConfig

    norms: ClassVar[Mapping[str, Names]] = {
        **Gemma4.norms,
        "laurel_norm": ("laurel.post_laurel_norm", "laurel_post_norm"),
        "altup_norm": ("altup.router_norm", "altup_router_norm"),
    }

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        return cls(_read_gguf(file))

    @staticmethod
    def read_text(config: JsonFile, tensor_names: Set[str]) -> Gemma4Config:
        return _read_folder(config, tensor_names)

    @property
    def kinds(self) -> tuple[LayerKind, ...]:
        return tuple(
            kind._replace(is_sparse=layer < self.config.num_sparse) for layer, kind in enumerate(super().kinds)
        )

    def feed_forward_leaves(self) -> list[Leaf]:
        config = self.config
        gates, down = super().feed_forward_leaves()
        sparse, dense = range(config.num_sparse), range(config.num_sparse, config.num_layers)
        of_sparse = replace(gates, name="sparse_gate_up", kind=LeafKind.MATRIX, layers=tuple(sparse))
        return [*([of_sparse] if sparse else []), *([replace(gates, layers=tuple(dense))] if dense else []), down]

    def layer_leaves(self) -> list[Leaf]:
        """Also of the residual streams, and of the products beside attention."""
        config, hidden, count = self.config, self.config.hidden_size, self.config.num_streams
        left = in_layers((config.laurel_rank, hidden), ("laurel.linear_left", "laurel_l"))
        right = in_layers((hidden, config.laurel_rank), ("laurel.linear_right", "laurel_r"))
        router = in_layers((count, hidden), ("altup.modality_router", "altup_router"))
        scale = Part(
            (hidden,),
            {
                "safetensors": Stored("model.layers.{layer}.altup.correct_output_scale"),
                "gguf": Stored("blk.{layer}.altup_correct_scale.weight"),
            },
        )
        coefficients = {"predict": ("prediction", count * count), "correct": ("correction", count)}
        return [
            *self.input_leaves(config.layer_vocab_size),
            Leaf("laurel_left", LeafKind.MATRIX, (left,)),
            Leaf("laurel_right", LeafKind.MATRIX, (right,)),
            Leaf("altup_router", LeafKind.MATRIX, (router,), is_exact=True),
            Leaf("altup_scale", LeafKind.VECTOR, (scale,)),
            *(
                Leaf(
                    f"altup_{name}", LeafKind.VECTOR,
                    (in_layers((outputs, count), (f"altup.{folder}_coefs", f"altup_{name}_coef")),), is_exact=True,
                )
                for name, (folder, outputs) in coefficients.items()
            ),
            *(self._stream_leaf(name, folder) for name, folder in (("altup", "altup"), ("unembed", "altup_unembed"))),
        ]  # fmt: skip

    def _stream_leaf(self, name: str, folder: str) -> Leaf:
        """The matrices of the streams behind the first, which GGUF files hold in one tensor."""
        size, gguf = self.config.hidden_size, "altup_proj" if name == "altup" else "altup_unembd_proj"
        stored = {
            "safetensors": Stored(f"model.{folder}_projections.{{expert}}.weight"), "gguf": Stored(f"{gguf}.weight"),
        }  # fmt: skip
        return Leaf(
            f"stream_{name}", LeafKind.MATRIX, (Part((size, size), stored),), is_per_layer=False,
            num_experts=self.config.num_streams - 1,
        )  # fmt: skip

    def begun(self, x: jax.Array, step: Step) -> jax.Array:
        """[num_streams, num_tokens, hidden]: the embedded tokens, and what matrices make of them."""
        others = [self._projected("altup", index, x, step) for index in range(self.config.num_streams - 1)]
        return jnp.stack([x, *(_with_magnitude(other, x) for other in others)])

    def ended(self, x: jax.Array, step: Step) -> jax.Array:
        """The mean of the streams."""
        first, *others = x
        total = first.astype(jnp.float32)
        for index, other in enumerate(others):
            total = total + _with_magnitude(self._projected("unembed", index, other, step), first)
        mean: jax.Array = (total / self.config.num_streams).astype(x.dtype)
        return mean

    def _projected(self, name: str, index: int, x: jax.Array, step: Step) -> jax.Array:
        return step.backends.products.norm_product(
            x, None, step.params[f"stream_{name}"], jnp.int32(index), step.layout
        )

    def inputs_by_layer(
        self, x: jax.Array, params: Params, tokens: jax.Array, layout: TokenLayout, products: Products
    ) -> jax.Array:
        known = jnp.where(tokens < self.config.layer_vocab_size, tokens, 0)
        return super().inputs_by_layer(x, params, known, layout, products)

    def layer(self, stream: Stream, kind: LayerKind, layer: jax.Array, place: jax.Array, step: Step) -> Stream:
        config, params = self.config, step.params
        assert step.by_layer is not None
        predicted = self._predicted(stream.x, layer, step)
        active = predicted[config.active_stream]
        stream = self.attended(stream._replace(x=active), kind, layer, place, step)
        x = multiplied(stream.x + self._augmented(active, layer, step), 2.0**-0.5).astype(active.dtype)
        x = self.mixed_block(x, kind, layer, step)
        corrected = self._corrected(predicted, x, layer, step)
        scaled = corrected[config.active_stream] * of_layer(params["altup_scale"], layer)
        added = self.of_input(scaled.astype(x.dtype), step.by_layer, layer, step)
        return stream._replace(x=jnp.concatenate([corrected[:1], corrected[1:] + added]).astype(x.dtype))

    def _augmented(self, x: jax.Array, layer: jax.Array, step: Step) -> jax.Array:
        """The normed inputs of attention, and what products of low rank add to them."""
        params, products = step.params, step.backends.products
        inputs = products.norm(x, self.norm_of(params, "attention_norm"), layer, step.layout)
        low = products.norm_product(inputs, None, params["laurel_left"], layer, step.layout)
        product = products.norm_product(low, None, params["laurel_right"], layer, step.layout)
        return inputs + products.norm(product, self.norm_of(params, "laurel_norm"), layer, step.layout)

    def mixed_block(self, x: jax.Array, kind: LayerKind, layer: jax.Array, step: Step) -> jax.Array:
        config, params, products = self.config, step.params, step.backends.products
        inputs = products.norm(x, self.norm_of(params, "mlp_norm"), layer, step.layout)
        if kind.is_sparse:
            made = products.norm_product(inputs, None, params["sparse_gate_up"], layer, step.layout)
            gates, ups = jnp.split(made.astype(jnp.float32), 2, axis=-1)
            mixed = (jax.nn.gelu(_sparse(gates, config.gate_cutoff), approximate=True) * ups).astype(x.dtype)
        else:
            mixed = products.norm_product(
                inputs, None, params["gate_up"], layer - config.num_sparse, step.layout,
                activation=config.activation, is_gated=True,
            )  # fmt: skip
        product = products.norm_product(mixed, None, params["down"], layer, step.layout)
        return (x + products.norm(product, self.norm_of(params, "down_norm"), layer, step.layout)).astype(x.dtype)

    def _modalities(self, x: jax.Array, layer: jax.Array, step: Step) -> jax.Array:
        """How much each stream matters to a token, float32[num_tokens, num_streams]."""
        params, products = step.params, step.backends.products
        inputs = products.norm(x, self.norm_of(params, "altup_norm"), layer, step.layout)
        routed = products.norm_product(inputs, None, params["altup_router"], layer, step.layout)
        return jnp.tanh(routed.astype(jnp.float32) / self.config.hidden_size)

    def _predicted(self, x: jax.Array, layer: jax.Array, step: Step) -> jax.Array:
        """The streams as a layer is expected to find them, of [num_streams, num_tokens, hidden]."""
        count = self.config.num_streams
        weights = _weighted(
            self._modalities(x[self.config.active_stream], layer, step), of_layer(step.params["altup_predict"], layer)
        )
        by_stream = weights.reshape(-1, count, count).swapaxes(0, 1)  # of each stream, what it takes of all
        total = x.astype(jnp.float32)
        for other in range(count):
            total = total + multiplied(by_stream[:, :, other : other + 1], x[other])
        return total.astype(x.dtype)

    def _corrected(self, predicted: jax.Array, made: jax.Array, layer: jax.Array, step: Step) -> jax.Array:
        """The streams after a layer has made something else of the active one."""
        weights = _weighted(self._modalities(made, layer, step), of_layer(step.params["altup_correct"], layer)) + 1
        new = (made - predicted[self.config.active_stream]).astype(jnp.float32)
        return (predicted + multiplied(new, weights.T[:, :, None])).astype(made.dtype)


def _weighted(x: jax.Array, weights: jax.Array) -> jax.Array:
    """The product of [num_tokens, inputs], which are few, with float32[inputs, outputs]."""
    total = multiplied(x[:, :1], weights[0])
    for index in range(1, len(weights)):
        total = total + multiplied(x[:, index : index + 1], weights[index])
    return total


def _with_magnitude(x: jax.Array, of: jax.Array) -> jax.Array:
    """x, made as long as another stream."""
    wide, other = x.astype(jnp.float32), of.astype(jnp.float32)
    target, square = (summed(multiplied(each, each)) / each.shape[-1] for each in (other, wide))
    return multiplied(wide, jnp.sqrt(target) / jnp.sqrt(jnp.maximum(square, _LEAST_SQUARE))).astype(x.dtype)


def _sparse(gates: jax.Array, cutoff: float) -> jax.Array:
    """What exceeds the mean of a token's gates by so many standard deviations."""
    size = gates.shape[-1]
    mean = summed(gates) / size
    centred = gates - mean
    deviation = jnp.sqrt(summed(multiplied(centred, centred)) / size)
    return jax.nn.relu(gates - (mean + multiplied(deviation, cutoff)))


def _read_folder(config: JsonFile, outputs: Set[str]) -> Gemma3nConfig:
    """The configuration in `config.json`, whose output matrix is among `outputs` if it has one; raises ModelError."""
    config = config.with_defaults(_DEFAULTS)
    if folder_config.read_flag(config, "attention_bias", False):
        raise config.error("attention_bias", "biases are not served")
    if not folder_config.read_flag(config, "altup_correct_scale", True):
        raise config.error("altup_correct_scale", "it must be true")
    if config.text("hidden_activation") not in (None, "gelu_pytorch_tanh"):
        raise config.error("hidden_activation", 'of this architecture it must be "gelu_pytorch_tanh"')
    inner = config.value("intermediate_size")
    if isinstance(inner, list):
        if not inner or any(each != inner[0] for each in inner):
            raise config.error("intermediate_size", "layers of different sizes are not served")
        config = config.with_values({"intermediate_size": inner[0]})
    sizes = folder_config.read_sizes(config)
    full, local = read_rotaries_of_kinds(
        config, sizes["head_dim"], sizes["context_length"],
        local_theta=config.positive_number("rope_local_base_freq") or _LOCAL_THETA,
    )  # fmt: skip
    usual = folder_config.read_decoder(
        config, outputs, "gemma3n_text", rotary=local, is_tied=True, hidden_act="gelu_pytorch_tanh"
    )
    num_layers = usual.num_layers
    windows = folder_config.read_windows(config, [(layer + 1) % _PERIOD != 0 for layer in range(num_layers)])
    pattern = config.value("activation_sparsity_pattern")
    if pattern is None:
        num_sparse = _NUM_SPARSE if num_layers > _NUM_SPARSE else 0
        pattern = [_SPARSITY] * num_sparse + [0.0] * (num_layers - num_sparse)
    if not isinstance(pattern, list):
        pattern = [pattern] * num_layers
    share, num_sparse = _of_first(pattern, num_layers, 0.0)
    if not isinstance(share, float) or num_sparse < 0 or not 0 <= share < 1:
        raise config.error(
            "activation_sparsity_pattern",
            f"it must list {num_layers} times 0, behind one share from 0 to 1 of first layers",
        )
    return _with_streams(
        usual, windows, (local, full), num_shared=config.integer("num_kv_shared_layers", least=0) or 0,
        layer_size=config.required_integer("hidden_size_per_layer_input", least=1),
        softcap=config.positive_number("final_logit_softcapping"),
        num_streams=config.required_integer("altup_num_inputs", least=2),
        active_stream=config.required_integer("altup_active_idx", least=0),
        laurel_rank=config.required_integer("laurel_rank", least=1), num_sparse=num_sparse,
        gate_cutoff=NormalDist().inv_cdf(share) if num_sparse else 0.0,
        layer_vocab_size=config.required_integer("vocab_size_per_layer_input", least=1),
    )  # fmt: skip


def _of_first(values: list[Any], num_layers: int, none: float) -> tuple[Any, int]:
    """The value of the first layers and their number, where all others have none; -1 of them for another list."""
    if len(values) != num_layers:
        return none, -1
    num_first = next((layer for layer, value in enumerate(values) if value == none), num_layers)
    is_uniform = all(value == values[0] for value in values[:num_first])
    is_none_behind = all(value == none for value in values[num_first:])
    return (values[0] if num_first else none), num_first if is_uniform and is_none_behind else -1


def _read_gguf(file: GGUFTensors) -> Gemma3nConfig:
    """The configuration in a GGUF file; raises ModelError."""
    fields = file.fields
    sizes = gguf_config.read_sizes(file)
    num_layers, head_dim = sizes["num_layers"], sizes["head_dim"]
    local = rotary.plain(head_dim, fields.positive_number("rope.freq_base_swa") or _LOCAL_THETA)
    usual = gguf_config.decoder_of(file, sizes, local)
    fields.required_integer("attention.sliding_window", least=1)
    num_shared = max(0, num_layers - _NUM_UNSHARED)
    if fields.value("attention.shared_kv_layers") is not None:
        num_shared = gguf_config.read_count(file, "attention.shared_kv_layers")
    key = "activation_sparsity_scale"
    cutoffs = fields.value(key)
    if cutoffs is None:
        num_sparse = min(_NUM_SPARSE, num_layers)
        cutoffs = [NormalDist().inv_cdf(_SPARSITY)] * num_sparse + [-np.inf] * (num_layers - num_sparse)
    cutoff, num_sparse = _of_first(cutoffs, num_layers, -np.inf) if isinstance(cutoffs, list) else (0.0, -1)
    if not isinstance(cutoff, float) or num_sparse < 0 or cutoff == np.inf or cutoff != cutoff:
        raise fields.error(key, f"it must list {num_layers} times -inf, behind one number of first layers")
    embedding, laurel = file.tensor("per_layer_token_embd.weight"), file.tensor("blk.0.laurel_l.weight")
    if embedding is None or laurel is None:
        name = "per_layer_token_embd.weight" if embedding is None else "blk.0.laurel_l.weight"
        raise ModelError(f"the file has no tensor {name!r}")
    return _with_streams(
        usual, gguf_config.read_windows(file, num_layers, period=_PERIOD),
        (local, read_rotary_of_gguf(file, head_dim, usual.context_length)), num_shared=num_shared,
        layer_size=fields.required_integer("embedding_length_per_layer_input", least=1),
        softcap=fields.positive_number("final_logit_softcapping") or _DEFAULTS["final_logit_softcapping"],
        num_streams=fields.integer("altup.num_inputs") or _DEFAULTS["altup_num_inputs"],
        active_stream=gguf_config.read_count(file, "altup.active_idx"), laurel_rank=laurel.shape[0],
        num_sparse=num_sparse, gate_cutoff=cutoff if num_sparse else 0.0, layer_vocab_size=embedding.shape[0],
    )  # fmt: skip


def _with_streams(
    usual: DecoderConfig, windows: tuple[int, ...], rotaries: tuple[Rotary, Rotary], *, num_shared: int,
    layer_size: int, softcap: float | None, num_streams: int, active_stream: int, laurel_rank: int, num_sparse: int,
    gate_cutoff: float, layer_vocab_size: int,
) -> Gemma3nConfig:  # fmt: skip
    heads = HeadSizes(head_dim=usual.head_dim, num_kv_heads=usual.num_kv_heads)
    config = made(
        usual, tuple(window == 0 for window in windows), heads, heads, rotaries, window=max(windows),
        keys_are_values=False, num_shared=num_shared, wide_size=0, layer_size=layer_size, softcap=softcap,
        routing=Routing(), expert_size=0,
    )  # fmt: skip
    return Gemma3nConfig(
        **vars(config), num_streams=num_streams, active_stream=active_stream, laurel_rank=laurel_rank,
        num_sparse=num_sparse, gate_cutoff=float(np.float32(gate_cutoff)), layer_vocab_size=layer_vocab_size,
    )  # fmt: skip
