"""The family of decoders whose layers are of several kinds of blocks, such as Granite 4 and Nemotron-H."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from cache.storage import KVPages
from engine.backends.base.backend import Backends, Products
from engine.backends.base.norms import of_layer
from engine.backends.base.operands import Activation, AttentionConstants, Convolution, Norm, StateSpace
from engine.backends.base.token_layout import TokenLayout
from engine.models.parts.decoder import Names, in_layers
from engine.models.parts.experts import ExpertsDecoder
from engine.models.parts.hybrids.hybrid_config import Block, HybridConfig
from engine.models.parts.hybrids.layers import Run, through_layers
from engine.models.parts.model import Carry
from engine.models.parts.rotary import rotation_tables
from engine.models.parts.routing import pick
from engine.weights.layout import Matrix, Params
from engine.weights.leaf import Leaf, LeafKind, Part, Split, Stored
from engine.weights.tensors import AsVector, NegativeExponential, Squeezed, Transform

Counts = dict[Block, jax.Array]  # how many layers with a block lie before


@dataclass(frozen=True)
class HybridDecoder(ExpertsDecoder):
    """Residual blocks, each behind a norm of its own."""

    config: HybridConfig
    takes_adapters = False  # parts of its layers are none of the products that adapters change

    norms: ClassVar[Mapping[str, Names]] = {}
    # The norm before a block, by the block.
    block_norms: ClassVar[Mapping[Block, Names]] = {
        Block.MAMBA: ("input_layernorm", "attn_norm"),
        Block.ATTENTION: ("input_layernorm", "attn_norm"),
        Block.BOTH: ("input_layernorm", "attn_norm"),
        Block.MLP: ("post_attention_layernorm", "ffn_norm"),
        Block.EXPERTS: ("post_attention_layernorm", "ffn_norm"),
    }
    mamba_name: ClassVar[str] = "mamba"  # of the tensors of a state space in a folder
    squares_relu: ClassVar[bool] = False  # in feed-forward blocks, which then have no gates
    # The products before and behind the experts, where they read a latent.
    latent_names: ClassVar[Mapping[str, Names]] = {
        "in": ("mixer.fc1_latent_proj", "ffn_latent_down"),
        "out": ("mixer.fc2_latent_proj", "ffn_latent_up"),
    }

    def attention_leaves(self) -> list[Leaf]:
        """Of all blocks but the feed-forward ones."""
        config = self.config
        leaves = []
        if config.mamba_layers:
            leaves += [replace(leaf, layers=config.mamba_layers) for leaf in self.mamba_leaves()]
        if config.attention_layers:
            leaves += [replace(leaf, layers=config.attention_layers) for leaf in super().attention_leaves()]
        return leaves

    def feed_forward_leaves(self) -> list[Leaf]:
        """Of the feed-forward blocks, and of the norms before all blocks."""
        config = self.config
        by_block = {Block.MLP: self.mlp_leaves, Block.EXPERTS: self.expert_leaves}
        leaves = []
        for block, names in self.block_norms.items():
            layers = config.layers_with(block)
            if layers:
                of_block = self.norm_leaves(f"{block}_norm", config.hidden_size, names)
                of_block += by_block[block]() if block in by_block else []
                leaves += [replace(leaf, layers=layers) for leaf in of_block]
        return leaves

    def mamba_leaves(self) -> list[Leaf]:
        """The leaves of a state space."""
        hidden, mamba = self.config.hidden_size, self.config.mamba
        vector, per_step = LeafKind.VECTOR, (mamba.num_steps,)
        decay = (mamba.value_size, mamba.state_size) if mamba.is_by_channel else per_step
        leaves = [
            self._matrix("mamba_in", (mamba.projected_size, hidden), "in_proj", "ssm_in"),
            self._matrix("mamba_out", (hidden, mamba.value_size), "out_proj", "ssm_out"),
            self._exact(
                "mamba_convolution", (mamba.num_channels, mamba.kernel), "conv1d.weight", "ssm_conv1d.weight", Squeezed
            ),
            self._exact("mamba_decay", decay, "A_log", "ssm_a", NegativeExponential, AsVector),
            self._exact("mamba_skip", per_step, "D", "ssm_d", None, AsVector),
        ]
        time_bias = ("dt_proj.bias" if mamba.is_by_channel else "dt_bias", "ssm_dt.bias")
        leaves.append(self._exact("mamba_time_bias", per_step, *time_bias))
        if mamba.has_convolution_bias:
            names = ("conv1d.bias", "ssm_conv1d.bias")
            leaves.append(self._exact("mamba_convolution_bias", (mamba.num_channels,), *names))
        if mamba.has_norm:
            names = ("norm.weight", "ssm_norm.weight")
            leaves.append(self._exact("mamba_norm_weight", (mamba.value_size,), *names, None, AsVector))
        if mamba.has_projection_bias:
            leaves += [
                Leaf("mamba_in_bias", vector, (self._part((mamba.projected_size,), "in_proj.bias", "ssm_in.bias"),)),
                Leaf("mamba_out_bias", vector, (self._part((hidden,), "out_proj.bias", "ssm_out.bias"),)),
            ]
        return leaves

    def _matrix(self, leaf: str, shape: tuple[int, int], folder: str, gguf: str) -> Leaf:
        return Leaf(leaf, LeafKind.MATRIX, (self._part(shape, f"{folder}.weight", f"{gguf}.weight"),))

    def _exact(
        self, leaf: str, shape: tuple[int, ...], folder: str, gguf: str, of_folder: Transform | None = None,
        of_gguf: Transform | None = None,
    ) -> Leaf:  # fmt: skip
        """A vector that stays in float32."""
        return Leaf(leaf, LeafKind.VECTOR, (self._part(shape, folder, gguf, of_folder, of_gguf),), is_exact=True)

    def _part(
        self, shape: tuple[int, ...], folder: str, gguf: str, of_folder: Transform | None = None,
        of_gguf: Transform | None = None,
    ) -> Part:  # fmt: skip
        """A tensor of a state space, whose transform in a GGUF file is for vectors alone."""
        return Part(
            shape,
            {
                "safetensors": Stored(f"model.layers.{{layer}}.{self.mamba_name}.{folder}", of_folder),
                "gguf": Stored(f"blk.{{layer}}.{gguf}", of_gguf if len(shape) == 1 else None),
            },
        )

    def mlp_leaves(self) -> list[Leaf]:
        """The leaves of a dense block."""
        hidden, inner = self.config.hidden_size, self.config.dense_size or self.config.intermediate_size
        return feed_forward_leaves("mlp", *self.mlp_parts(hidden, inner))

    def mlp_parts(self, hidden: int, inner: int) -> tuple[tuple[Part, ...], Part]:
        """The gate and up, or the up alone, and the down of a dense block."""
        gate, up = (in_layers((inner, hidden), (f"mlp.{kind}_proj", f"ffn_{kind}")) for kind in ("gate", "up"))
        return (gate, up), in_layers((hidden, inner), ("mlp.down_proj", "ffn_down"))

    def expert_leaves(self) -> list[Leaf]:
        """The leaves of a mixture of experts."""
        config, hidden = self.config, self.config.hidden_size
        up, down = self.gate_up_and_down(config.latent_size or hidden, config.intermediate_size)
        experts = feed_forward_leaves("experts", up, down)
        leaves = [
            Leaf(
                "router", LeafKind.MATRIX, (in_layers((config.num_experts, hidden), self.router_names),), is_exact=True
            ),
            *(replace(leaf, split=Split.EXPERTS, num_experts=config.num_experts) for leaf in experts),
        ]
        if config.has_choice_bias:
            leaves.append(Leaf("choice_bias", LeafKind.VECTOR, (self.choice_bias_part(),), is_exact=True))
        if config.latent_size:
            shapes = {"in": (config.latent_size, hidden), "out": (hidden, config.latent_size)}
            leaves += [
                Leaf(f"latent_{kind}", LeafKind.MATRIX, (in_layers(shape, self.latent_names[kind]),))
                for kind, shape in shapes.items()
            ]
        if config.shared_size:
            leaves += feed_forward_leaves("shared", *self.shared_parts(hidden, config.shared_size))
        return leaves

    def gate_up_and_down(self, hidden: int, inner: int) -> tuple[tuple[Part, ...], Part]:
        """As `mlp_parts`, of an expert."""
        if self.squares_relu:
            up, down = self.expert_names["up"], self.expert_names["down"]
            return (in_layers((inner, hidden), up),), in_layers((hidden, inner), down)
        *gate_up, down_part = self.expert_parts(hidden, inner)
        return tuple(gate_up), down_part

    def shared_parts(self, hidden: int, inner: int) -> tuple[tuple[Part, ...], Part]:
        """As `mlp_parts`, of the expert that every token goes through."""
        names, kinds = self.shared_names, ("up",) if self.squares_relu else ("gate", "up")
        up = tuple(in_layers((inner, hidden), names[kind]) for kind in kinds)
        return up, in_layers((hidden, inner), names["down"])

    def forward(
        self, params: Params, tokens: jax.Array, kv: KVPages, layout: TokenLayout, backends: Backends
    ) -> tuple[jax.Array, KVPages]:
        """As `Decoder.forward`; layers come in runs of a pattern, as `through_layers` finds them."""
        config = self.config
        attention = self._attention(params, layout) if config.attention_layers else None
        carry: Carry = (backends.products.embed(params["embedding"], tokens, layout, scale=config.embedding_scale), kv)

        def run_pattern(run: Run, index: jax.Array, carry: Carry) -> Carry:
            before, pattern = config.blocks[: run.first], config.blocks[run.first : run.first + run.length]
            flat = [block for of_layer in pattern for block in of_layer]
            done: Counts = {
                block: sum(of_layer.count(block) for of_layer in before) + index * flat.count(block) for block in Block
            }
            for block in flat:
                carry = self._block(block, done, carry, params, layout, backends, attention)
                done[block] = done[block] + 1
            return carry

        return through_layers(config.blocks, run_pattern, carry)

    def _block(
        self, block: Block, done: Counts, carry: Carry, params: Params, layout: TokenLayout, backends: Backends,
        attention: AttentionConstants | None,
    ) -> Carry:  # fmt: skip
        """The residual stream and kv after a block."""
        (x, kv), products, index = carry, backends.products, done[block]
        norm = Norm(params[f"{block}_norm"], self.config.rms_norm_eps)
        match block:
            case Block.MLP:
                return self.mlp(x, norm, params, index, layout, products), kv
            case Block.EXPERTS:
                return self.experts(x, norm, params, index, layout, products), kv
        made = []
        if block in (Block.MAMBA, Block.BOTH):
            values, kv = self._state_space(x, norm, kv, params, done[block], layout, backends)
            made.append((values, "mamba_out"))
        if block in (Block.ATTENTION, Block.BOTH):
            assert attention is not None
            qkv = products.norm_product(x, norm, params["qkv"], index, layout, bias=params.get("qkv_bias"))
            qkv = self.normed_heads(qkv, params, index)
            attended, kv = backends.attention(qkv, kv, index, layout, attention)
            made.append((attended, "attention_output"))
        for inner, leaf in made:
            x = self.added(x, inner, leaf, params, index, layout, products)
        return x, kv

    def normed_heads(self, qkv: jax.Array, params: Params, index: jax.Array) -> jax.Array:
        """Queries, keys and values for attention, where it does not norm them as the architecture does."""
        return qkv

    def _attention(self, params: Params, layout: TokenLayout) -> AttentionConstants:
        config = self.config
        return AttentionConstants(
            num_heads=config.num_heads,
            scale=config.attention_scale,
            rotations=rotation_tables(layout.positions, config.rotary),
            tables=np.array(config.tables, np.int32),
            windows=np.array(config.windows, np.int32),
            q_norm=self.norm(params, "q_norm"),
            k_norm=self.norm(params, "k_norm"),
        )

    def _state_space(
        self, x: jax.Array, norm: Norm, kv: KVPages, params: Params, index: jax.Array, layout: TokenLayout,
        backends: Backends,
    ) -> tuple[jax.Array, KVPages]:  # fmt: skip
        """The values that a state space makes of the tokens, [num_tokens, value_size], before the last product."""
        products = backends.products
        projected = products.norm_product(x, norm, params["mamba_in"], index, layout, bias=params.get("mamba_in_bias"))
        mixed, kv = backends.convolution(projected, kv, index, layout, self._convolution(params))
        mixed, time_steps = self.mixed_and_steps(projected, mixed, params, index, layout, products)
        return backends.state_space(mixed, projected, time_steps, kv, index, layout, self._constants(params))

    @property
    def first_channel(self) -> int:
        """The first column of the convolution's channels in what the first product of a state space makes."""
        return self.config.mamba.value_size

    @property
    def first_gate(self) -> int:
        """The same of the gates."""
        return 0

    def _convolution(self, params: Params) -> Convolution:
        return Convolution(params["mamba_convolution"], params.get("mamba_convolution_bias"), self.first_channel)

    def mixed_and_steps(
        self, projected: jax.Array, mixed: jax.Array, params: Params, index: jax.Array, layout: TokenLayout,
        products: Products,
    ) -> tuple[jax.Array, jax.Array]:  # fmt: skip
        """Values, B and C, and the time steps, as `StateSpaceScan` takes them, of what is convolved."""
        return mixed, projected[:, -self.config.mamba.num_heads :]

    def _constants(self, params: Params) -> StateSpace:
        mamba = self.config.mamba
        norm = Norm(params["mamba_norm_weight"], self.config.rms_norm_eps) if mamba.has_norm else None
        return StateSpace(
            num_heads=mamba.num_heads, head_dim=mamba.head_dim, num_groups=mamba.num_groups,
            state_size=mamba.state_size, decay=params["mamba_decay"], time_bias=params["mamba_time_bias"],
            skip=params["mamba_skip"], is_by_channel=mamba.is_by_channel, time_limits=mamba.time_limits, norm=norm,
            norms_first=mamba.norms_first, first_gate=self.first_gate,
        )  # fmt: skip

    def mlp(
        self, x: jax.Array, norm: Norm | None, params: Params, index: jax.Array, layout: TokenLayout,
        products: Products,
    ) -> jax.Array:  # fmt: skip
        """The residual stream after a dense block."""
        mixed = self._up(x, norm, params["mlp_up"], index, layout, products)
        return self.added(x, mixed, "mlp_down", params, index, layout, products)

    def _up(
        self, x: jax.Array, norm: Norm | None, weights: Matrix, index: jax.Array, layout: TokenLayout,
        products: Products,
    ) -> jax.Array:  # fmt: skip
        return products.norm_product(
            x, norm, weights, index, layout, activation=self._activation, is_gated=not self.squares_relu
        )

    @property
    def _activation(self) -> Activation:
        return Activation.RELU_SQUARED if self.squares_relu else self.config.activation

    def experts(
        self, x: jax.Array, norm: Norm, params: Params, index: jax.Array, layout: TokenLayout, products: Products
    ) -> jax.Array:
        """The residual stream after a mixture of experts."""
        config = self.config
        inputs = products.norm(x, norm, index, layout)
        scores = products.norm_product(inputs, None, params["router"], index, layout)
        picks = pick(scores, config, of_layer(params["choice_bias"], index) if config.has_choice_bias else None)
        if config.residual_scale != 1.0:
            picks = picks._replace(shares=picks.shares * config.residual_scale)
        add_experts = partial(
            products.add_experts, gate_up=params["experts_up"], down=params["experts_down"], picks=picks, layer=index,
            layout=layout, activation=self._activation, is_gated=not self.squares_relu,
        )  # fmt: skip
        if config.latent_size:
            latent = products.norm_product(inputs, None, params["latent_in"], index, layout)
            mixed = add_experts(jnp.zeros_like(latent), latent)
            added = products.add_product(x, mixed, params["latent_out"], index, layout)
        else:
            added = add_experts(x, inputs)
        if not config.shared_size:
            return added
        mixed = self._up(inputs, None, params["shared_up"], index, layout, products)
        return products.add_product(added, mixed, params["shared_down"], index, layout, scale=config.residual_scale)


def feed_forward_leaves(leaf: str, up: tuple[Part, ...], down: Part) -> list[Leaf]:
    """The leaves of a dense block: of its gate and up, or its up alone, and its down."""
    kind = LeafKind.GATED if len(up) > 1 else LeafKind.MATRIX
    return [
        Leaf(f"{leaf}_up", kind, up, Split.OUTPUTS),
        Leaf(f"{leaf}_down", LeafKind.MATRIX, (down,), Split.INPUTS),
    ]
