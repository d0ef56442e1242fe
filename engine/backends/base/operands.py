"""What a model passes to a backend besides weights and activations: norms, activations, constants of attention."""

import math
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import jax
import numpy as np


class NormKind(IntEnum):
    """How the inputs of a product are normed; the values are those of the native kernels."""

    NONE = 0
    RMS = 1  # Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019
    LAYER = 2  # Ba, Kiros and Hinton, "Layer Normalization", 2016


class Activation(IntEnum):
    """The function of a product's outputs; the values are those of the native kernels."""

    NONE = 0
    SILU = 1  # Elfwing et al., "Sigmoid-weighted linear units", 2017
    GELU_TANH = 2  # the approximation of Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016
    GELU_ERF = 3  # their exact function
    RELU = 4
    RELU_SQUARED = 5  # So et al., "Primer", 2021
    QUICK_GELU = 6  # x * sigmoid(1.702 x), of the same paper as GELU


class Clamp(NamedTuple):
    """What a gated product does instead of its activation, in gpt-oss (OpenAI, "gpt-oss model card", 2025).

    z * sigmoid(alpha * z) of z = min(gate, limit) is multiplied with up, clamped to ±limit, plus 1. In Step 3.5 it is
    the smaller of silu(gate) and limit, which is multiplied with up, clamped to ±limit.
    """

    alpha: float | None  # None: as in Step 3.5
    limit: float


class ExpertBiases(NamedTuple):
    """Of a stack of experts, as their matrices are stacked."""

    gate_up: jax.Array  # [num_layers * num_experts, 2 * inner], the gate's first; without gates [..., inner]
    down: jax.Array  # [num_layers * num_experts, hidden]


@dataclass(frozen=True)
class Norm:
    """A norm over the last axis, in every layer."""

    weight: jax.Array  # [num_layers, size]
    epsilon: float
    kind: NormKind = NormKind.RMS
    bias: jax.Array | None = None  # [num_layers, size], of a LayerNorm that has one


class Picks(NamedTuple):
    """The experts that each token of a step is routed to, and their shares."""

    experts: jax.Array  # int32[num_tokens, num_picked], different ones for each token
    shares: jax.Array  # float32[num_tokens, num_picked]
    num_experts: int  # of a layer; in a stack of matrices, expert i of a layer is at layer * num_experts + i


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LowRankPairs:
    """The pairs of low-rank matrices that adapters add to one leaf (Hu et al., "LoRA", 2021).

    The outputs of a leaf are in parts, such as queries, keys and values, each with columns of `down` of its own, from
    part * rank on. What an adapter's own rank leaves free is 0. How the matrices of a slot and a layer lie is for the
    backend's layout of weights to say; these are XLA's axes.
    """

    down: jax.Array  # [num_slots, num_layers, inputs, num_parts * rank]
    up: jax.Array  # [num_slots, num_layers, rank, outputs], times the adapter's own scale
    ranks: jax.Array  # int32[num_slots], of each adapter; 0: it does not change this leaf, or there is none
    ends: tuple[int, ...] = field(metadata={"static": True})  # of each part, among the outputs


class TokenIndex(NamedTuple):
    """What picks the tokens that a query sees, in a layer of a step (DeepSeek-AI, "DeepSeek-V3.2", 2025).

    Of a query and a token, each head's product is 0 where it is negative, and their sum by the query's weights is the
    score. The tokens of the best scores are seen, the earlier one of two alike. Their keys are the last features of
    what is in the pages, where queries of attention have zeros.
    """

    queries: jax.Array  # [num_tokens, num_heads, size]
    weights: jax.Array  # float32[num_tokens, num_heads]
    num_picked: int  # static


@dataclass(frozen=True)
class AttentionConstants:
    """The constants of attention in a model, the same for a whole step.

    Host arrays are constants of the compiled program, so that what a model does not use costs nothing. Raises
    ValueError where the norms of queries and keys are no RMS norms, have biases or differ in epsilon.
    """

    num_heads: int
    scale: float  # multiplies the scores
    # float32[num_tables, num_tokens, rotary_dim]: cosines, then sines, of rotary_dim / 2 angles. The first
    # rotary_dim features of a head are rotated, feature i with feature i + rotary_dim / 2; the rest pass through.
    rotations: jax.Array
    tables: np.ndarray  # int32[num_layers]: which of the rotations a layer uses; -1: it does not rotate
    # int32[num_layers]: tokens that a query sees, up to and with its own, and where tokens have no order, on either
    # side; 0: all.
    windows: np.ndarray
    softcap: float = 0.0  # above 0, scores become softcap * tanh(scores / softcap)
    is_causal: bool = True  # else tokens see their whole text, which one step computes
    # [num_layers, num_heads]: a score in each softmax that has no value, so that the weights add up to less than 1
    # (Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2023).
    sinks: jax.Array | None = None
    # float32[num_heads]: what each position between a query and a key takes from their score, behind soft caps.
    distance_slopes: np.ndarray | None = None
    # Whether keys add slope times position instead, rounded to bfloat16 and scaled as the scores are.
    rounds_biases: bool = False
    index: TokenIndex | None = None  # None: queries see all tokens that their window holds
    # RMS norms of queries and keys before they are rotated: [num_layers, head_dim], each head by itself,
    # or [num_layers, num_heads * head_dim], over all heads at once.
    q_norm: Norm | None = None
    k_norm: Norm | None = None

    def __post_init__(self) -> None:
        norms = [norm for norm in (self.q_norm, self.k_norm) if norm is not None]
        if any(norm.kind is not NormKind.RMS or norm.bias is not None for norm in norms):
            raise ValueError("a norm of queries or keys has another kind or a bias; attention takes RMS norms alone")
        if len({norm.epsilon for norm in norms}) > 1:
            raise ValueError(f"q_norm and k_norm differ in epsilon: {norms[0].epsilon} and {norms[1].epsilon}")


@dataclass(frozen=True)
class GatedDelta:
    """The sizes and weights of gated delta-net layers (Yang et al., "Gated Delta Networks", 2025).

    The states of a sequence are the last inputs of the convolution, [kernel - 1, channels], and a matrix [key_dim,
    value_dim] for each head of values.
    """

    num_key_heads: int
    num_heads: int  # of values; a multiple of those of keys
    key_dim: int
    value_dim: int
    convolution: jax.Array  # float32[num_layers, kernel, channels]; channels are those of queries, keys and values
    # float32[num_layers, num_heads], below 0, and the same; None where each row of a matrix has a decay of its own, by
    # the logarithms that `alpha` then holds (Kimi Team, "Kimi Linear", 2025).
    decay: jax.Array | None
    time_bias: jax.Array | None
    norm: Norm  # of each head of the output: [num_layers, value_dim]
    is_tiled: bool  # whether head i has keys i modulo num_key_heads; else neighbouring heads share keys
    beta_scale: float = 1.0  # multiplies the sigmoid of beta; with 2, states may be turned around
    has_sigmoid_gates: bool = False  # whether the output is gated by sigmoids; else by silu

    @property
    def has_row_decays(self) -> bool:
        return self.decay is None

    @property
    def key_size(self) -> int:
        return self.num_key_heads * self.key_dim

    @property
    def value_size(self) -> int:
        return self.num_heads * self.value_dim

    @property
    def num_channels(self) -> int:
        return 2 * self.key_size + self.value_size


@dataclass(frozen=True)
class Convolution:
    """The short convolutions of recurrent layers, each channel by itself; the state is the last inputs of each."""

    weights: jax.Array  # float32[num_layers, kernel, channels]
    bias: jax.Array | None = None  # float32[num_layers, channels]
    first: int = 0  # the column of the first channel
    has_silu: bool = True  # of the sums

    @property
    def num_channels(self) -> int:
        return self.weights.shape[2]


@dataclass(frozen=True)
class StateSpace:
    """The sizes and weights of selective state spaces.

    Those of Mamba-2 (Dao and Gu, "Transformers are SSMs", 2024), or of Mamba (Gu and Dao, "Mamba", 2023), where each
    channel has a time step and decays of its own. The state of a sequence is a matrix [state_size, head_dim] for each
    head.
    """

    num_heads: int
    head_dim: int
    num_groups: int  # of heads that share B and C, and of the norm
    state_size: int
    decay: jax.Array  # float32[num_layers, num_heads], or by channel [num_layers, state_size, value_size]; below 0
    time_bias: jax.Array  # float32[num_layers, num_heads], or by channel [num_layers, value_size]
    skip: jax.Array  # the same: the share of a value that goes past the state
    is_by_channel: bool = False
    time_limits: tuple[float, float] = (0.0, math.inf)
    norm: Norm | None = None  # of the output, over each group: [num_layers, value_size]
    norms_first: bool = False  # before the output is gated, not behind
    first_gate: int = 0  # the column of the first gate

    @property
    def value_size(self) -> int:
        return self.num_heads * self.head_dim
