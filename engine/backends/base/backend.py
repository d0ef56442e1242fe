"""The interface of a backend, and the record of the backends that one engine uses."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import jax

from cache.storage import KVPages
from engine.backends.base.bursts import Bursts
from engine.backends.base.empty_arrays import EmptyArrays
from engine.backends.base.model_config import ModelConfig
from engine.backends.base.operands import (
    Activation,
    AttentionConstants,
    Clamp,
    Convolution,
    ExpertBiases,
    GatedDelta,
    LowRankPairs,
    Norm,
    Picks,
    StateSpace,
)
from engine.backends.base.patches import Patches
from engine.backends.base.token_layout import TokenLayout
from engine.weights.layout import Matrix, WeightsLayout
from sampling.sampler import SamplerBackend


class BackendUnavailable(RuntimeError):
    """A backend's kernels cannot be used here; the message says why, and how to get them."""


class Products(Protocol):
    """Products of activations [num_tokens, size] with weights that the same backend's `weights` has made.

    Padding tokens and padding rows of logits may hold any values. `layer` is an int32 scalar, the index into the
    stacks.
    """

    def embed(self, weights: Matrix, tokens: jax.Array, layout: TokenLayout, *, scale: float = 1.0) -> jax.Array:
        """scale times the embedding's rows of int32[num_tokens]: [num_tokens, hidden]."""

    def norm(self, x: jax.Array, norm: Norm, layer: jax.Array, layout: TokenLayout) -> jax.Array:
        """norm(x), [num_tokens, size], for what reads it several times."""

    def norm_product(
        self, x: jax.Array, norm: Norm | None, weights: Matrix, layer: jax.Array, layout: TokenLayout, *,
        bias: jax.Array | None = None, activation: Activation = Activation.NONE, is_gated: bool = False,
        pairs: LowRankPairs | None = None,
    ) -> jax.Array:  # fmt: skip
        """activation(norm(x) @ weights + bias); gated, activation(gate) * up of a matrix that has both.

        x is [num_tokens, inputs], bias [num_layers, outputs]; gated, weights and bias have first the gates, then the
        ups. Beside the bias stands what the adapters of the step's rows make of norm(x) with their pairs: 0 in rows
        without an adapter.
        """

    def add_product(
        self, addend: jax.Array, x: jax.Array, weights: Matrix, layer: jax.Array, layout: TokenLayout, *,
        bias: jax.Array | None = None, scale: float = 1.0, pairs: LowRankPairs | None = None,
    ) -> jax.Array:  # fmt: skip
        """addend + scale * (x @ weights + bias), [num_tokens, outputs]; the addend may be overwritten.

        Pairs as in `norm_product`.
        """

    def add_experts(
        self, addend: jax.Array, x: jax.Array, gate_up: Matrix, down: Matrix, picks: Picks, layer: jax.Array,
        layout: TokenLayout, *, activation: Activation, is_gated: bool = True, clamp: Clamp | None = None,
        biases: ExpertBiases | None = None,
    ) -> jax.Array:  # fmt: skip
        """addend + the sum over each token's experts of share * ((activation(x @ gate) * (x @ up)) @ down).

        Biases are added to each of the three products, and a clamp stands for the activation. Without gates, gate_up
        holds ups alone, and the activation is that of up.

        Only experts with tokens are read, and each computes those tokens alone (Shazeer et al., 2017). The addend may
        be overwritten; gate_up and down are stacks of all experts of all layers.
        """

    def head_product(
        self, x: jax.Array, sampled: jax.Array, norm: Norm | None, weights: Matrix, *,
        bias: jax.Array | None = None, scale: float = 1.0, softcap: float = 0.0,
    ) -> jax.Array:  # fmt: skip
        """Logits float32[num_sampled_rows, vocab]: z = scale * (norm(x) @ weightsᵀ + bias), perhaps soft-capped.

        Args:
            sampled: int32[num_sampled_rows], indices of tokens; negative in padding rows.
            weights: an embedding's, [vocab, hidden].
            softcap: above 0, logits become softcap * tanh(z / softcap).
        """


class Attention(Protocol):
    """Paged attention over the step's tokens and the pages of their requests."""

    def __call__(
        self, qkv: jax.Array, kv: KVPages, layer: jax.Array, layout: TokenLayout, constants: AttentionConstants
    ) -> tuple[jax.Array, KVPages]:
        """Norms and rotates queries and keys, writes keys and values into kv's pages, and attends causally.

        All keys and values are written before any row attends, because rows may share pages that the step fills. qkv is
        [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim], the result [num_tokens, num_heads * head_dim]. Where
        pages have one part, qkv has no values: keys, as they are in the pages, are the values too.
        """


class PatchAttention(Protocol):
    """Attention of a picture's patches to each other."""

    def __call__(
        self, qkv: jax.Array, patches: Patches, *, num_heads: int, scale: float, angles: jax.Array | None,
        is_exact: bool,
    ) -> jax.Array:  # fmt: skip
        """[num_patches, num_heads * size] of queries, keys and values, [num_patches, 3 * num_heads * size].

        Patches that are not real may hold any values, and get any.

        Args:
            scale: multiplies the scores.
            angles: float32[num_patches, size / 2], by which the pairs of features i and i + size / 2 of queries and
                keys are rotated; None: they are not.
            is_exact: whether nothing is rounded to less than float32.
        """


class Recurrence(Protocol):
    """A gated delta-net over the step's tokens and the states of their sequences."""

    def __call__(
        self, qkvz: jax.Array, beta: jax.Array, alpha: jax.Array, kv: KVPages, layer: jax.Array, layout: TokenLayout,
        constants: GatedDelta,
    ) -> tuple[jax.Array, KVPages]:  # fmt: skip
        """Goes through the rows of each sequence token by token, in order, and updates, loads and saves its states.

        So the bits of a token do not depend on how a prompt is cut, or on other rows. `layer` counts recurrent layers.

        Args:
            qkvz: [num_tokens, num_channels + value_size]: queries, keys, values and the gates of the output.
            beta: [num_tokens, num_heads], before the sigmoid.
            alpha: the same, from which the decay of each token follows; or, where each row of a matrix has a decay of
                its own, their logarithms, [num_tokens, num_heads * key_dim].

        Returns:
            The gated output, [num_tokens, value_size], and kv.
        """


class StateConvolution(Protocol):
    """A short convolution over the step's tokens and the tokens of their sequences before them, and perhaps silu."""

    def __call__(
        self, x: jax.Array, kv: KVPages, layer: jax.Array, layout: TokenLayout, constants: Convolution
    ) -> tuple[jax.Array, KVPages]:
        """[num_tokens, num_channels] of x [num_tokens, size], and kv, whose first state are the last inputs.

        Token by token as `Recurrence`.
        """


class StateSpaceScan(Protocol):
    """A selective state space over the step's tokens and the states of their sequences."""

    def __call__(
        self, mixed: jax.Array, gates: jax.Array, time_steps: jax.Array, kv: KVPages, layer: jax.Array,
        layout: TokenLayout, constants: StateSpace,
    ) -> tuple[jax.Array, KVPages]:  # fmt: skip
        """The gated output, [num_tokens, value_size], and kv, whose second state are the matrices.

        Token by token as `Recurrence`.

        Args:
            mixed: [num_tokens, value_size + 2 * num_groups * state_size]: values, B and C.
            gates: [num_tokens, size], those of the output from column `first_gate` on.
            time_steps: [num_tokens, num_heads], or by channel [num_tokens, value_size], before bias and softplus.
        """


@dataclass(frozen=True)
class Backend:
    """One implementation of every heavy part of a step."""

    name: str  # in the configuration, the metrics and the log
    load: Callable[[], str]  # makes it usable, and says what it is, for the log; raises BackendUnavailable
    # Why it cannot serve models of such sizes, or None where it can.
    products_unsupported_reason: Callable[[ModelConfig], str | None]
    attention_unsupported_reason: Callable[[ModelConfig], str | None]
    encoder_unsupported_reason: Callable[[Mapping[str, int]], str | None]  # of the inputs of its products, by name
    weights: WeightsLayout  # as the products read them
    products: Products
    sampler: SamplerBackend
    attention: Attention
    patch_attention: PatchAttention
    recurrence: Recurrence
    convolution: StateConvolution
    state_space: StateSpaceScan
    kv_dtype: Callable[[], str]  # of the pages, where the configuration leaves it open
    bursts: Bursts | None  # None: a program tells the host of its tokens when it has ended
    is_opaque_to_xla: bool  # XLA cannot estimate the arithmetic of its kernels, and counts them for nothing
    empty: EmptyArrays


@dataclass(frozen=True)
class Backends:
    """The backends of one engine, chosen once at its start.

    The sampler belongs to the backend of the products; recurrent layers and patches of pictures to that of attention,
    which allocates pages and states.
    """

    for_products: Backend
    for_attention: Backend
    detail: str  # which kernels these are, or why there are no better ones; for the log
    is_exact: bool = False  # whether nothing is rounded to less than float32

    @property
    def is_opaque_to_xla(self) -> bool:
        """Whether this holds for a part of a step."""
        return self.for_products.is_opaque_to_xla or self.for_attention.is_opaque_to_xla

    @property
    def weights(self) -> WeightsLayout:
        return self.for_products.weights

    @property
    def products(self) -> Products:
        return self.for_products.products

    @property
    def sampler(self) -> SamplerBackend:
        return self.for_products.sampler

    @property
    def bursts(self) -> Bursts | None:
        return self.for_products.bursts

    @property
    def attention(self) -> Attention:
        return self.for_attention.attention

    @property
    def patch_attention(self) -> PatchAttention:
        return self.for_attention.patch_attention

    @property
    def recurrence(self) -> Recurrence:
        return self.for_attention.recurrence

    @property
    def convolution(self) -> StateConvolution:
        return self.for_attention.convolution

    @property
    def state_space(self) -> StateSpaceScan:
        return self.for_attention.state_space

    @property
    def empty(self) -> EmptyArrays:
        return self.for_attention.empty
