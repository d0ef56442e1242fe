"""Routing: which experts a token goes to, and the share that each of them has."""

from dataclasses import dataclass
from enum import StrEnum

import jax
import jax.numpy as jnp
from jax import lax

from engine.backends.base.operands import Picks
from engine.interface.errors import ModelError

MAX_NUM_EXPERTS = 4096  # so that a damaged configuration cannot ask for a huge list of tensor names

_LEAST_SUM = 1e-20  # is added to sums of shares, as in DeepSeek's code, so that none is divided by 0


class Scoring(StrEnum):
    """What makes shares of a router's outputs."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"


@dataclass(frozen=True, kw_only=True)
class Routing:
    """How tokens are routed in the layers that have experts."""

    num_experts: int = 0  # of a layer
    num_picked: int = 0  # of a token
    normalises_shares: bool = False  # whether the shares of the experts that a token picks add up to 1
    scoring: Scoring = Scoring.SOFTMAX
    has_choice_bias: bool = False  # of each expert, which counts when experts are picked, and not in their shares
    # Neighbouring experts form groups, and a token picks from the groups whose best experts have the largest sums.
    num_groups: int = 1
    num_picked_groups: int = 1
    num_best_of_group: int = 2
    share_scale: float = 1.0  # multiplies the shares in the end

    def check(self) -> None:
        """Raises ModelError if a token cannot pick so many experts, or there are more than any model has."""
        if self.num_experts > MAX_NUM_EXPERTS:
            raise ModelError(f"the layers have {self.num_experts} experts each; at most {MAX_NUM_EXPERTS} are served")
        if self.num_picked > self.num_experts:
            raise ModelError(f"a token cannot pick {self.num_picked} of {self.num_experts} experts")
        if self.num_experts % self.num_groups:
            raise ModelError(f"{self.num_experts} experts cannot form {self.num_groups} groups of one size")
        if self.num_picked_groups > self.num_groups:
            raise ModelError(f"a token cannot pick {self.num_picked_groups} of {self.num_groups} groups of experts")
        if self.num_picked > self.num_picked_groups * (self.num_experts // self.num_groups):
            raise ModelError(
                f"a token cannot pick {self.num_picked} experts in {self.num_picked_groups} groups of "
                f"{self.num_experts // self.num_groups}"
            )


def pick(scores: jax.Array, routing: Routing, choice_bias: jax.Array | None = None) -> Picks:
    """The experts with the largest shares, made of [num_tokens, num_experts].

    `choice_bias`, [num_experts], is that of the layer (Wang et al., "Auxiliary-Loss-Free Load Balancing Strategy for
    Mixture-of-Experts", 2024).
    """
    scores = scores.astype(jnp.float32)
    shares = jax.nn.softmax(scores, axis=-1) if routing.scoring is Scoring.SOFTMAX else jax.nn.sigmoid(scores)
    preferences = shares if choice_bias is None else shares + choice_bias.astype(jnp.float32)
    if routing.num_picked_groups < routing.num_groups:
        preferences = _within_best_groups(preferences, routing)
    if preferences is shares:
        shares, experts = lax.top_k(shares, routing.num_picked)
    else:
        _, experts = lax.top_k(preferences, routing.num_picked)
        shares = jnp.take_along_axis(shares, experts, axis=-1)
    if routing.normalises_shares:
        shares = shares / (jnp.sum(shares, axis=-1, keepdims=True) + _LEAST_SUM)
    if routing.share_scale != 1.0:
        shares = shares * routing.share_scale
    return Picks(experts, shares, routing.num_experts)


def _within_best_groups(preferences: jax.Array, routing: Routing) -> jax.Array:
    """The preferences, with experts outside the best groups behind all others."""
    groups = preferences.reshape(len(preferences), routing.num_groups, -1)
    num_best = min(routing.num_best_of_group, groups.shape[-1])
    of_groups = jnp.sum(lax.top_k(groups, num_best)[0], axis=-1)
    _, best = lax.top_k(of_groups, routing.num_picked_groups)
    is_best = (best[:, :, None] == jnp.arange(routing.num_groups)).any(axis=1)
    return jnp.where(is_best[:, :, None], groups, -jnp.inf).reshape(preferences.shape)
