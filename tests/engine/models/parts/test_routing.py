"""The router: which experts a token picks, and what counts of them."""

import jax.numpy as jnp
import numpy as np
import pytest

from engine.interface.errors import ModelError
from engine.models.parts.routing import Routing, Scoring, pick

SHARES = np.array([[0.1, 0.4, 0.2, 0.3], [0.5, 0.25, 0.15, 0.1]])
IN_COMMON = np.array([[3.0], [-2.0]])  # of a token's scores, which a softmax takes away
SCORES = jnp.asarray(np.log(SHARES) + IN_COMMON, jnp.float32)


@pytest.mark.parametrize("normalises", [False, True])
def test_the_largest_shares_are_picked(normalises: bool) -> None:
    picks = pick(SCORES, Routing(num_experts=4, num_picked=2, normalises_shares=normalises))
    assert picks.num_experts == 4
    np.testing.assert_array_equal(picks.experts, [[1, 3], [0, 1]])
    expected = np.array([[0.4, 0.3], [0.5, 0.25]])
    if normalises:
        expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(picks.shares, expected, rtol=1e-6)


def test_a_bias_counts_in_the_choice_and_not_in_the_shares() -> None:
    logits = np.array([[0.0, 2.0, 1.0, -1.0]], np.float32)
    routing = Routing(num_experts=4, num_picked=2, scoring=Scoring.SIGMOID, has_choice_bias=True, share_scale=3.0)
    picks = pick(jnp.asarray(logits), routing, jnp.asarray([0.0, -1.0, 0.0, 1.0]))
    np.testing.assert_array_equal(picks.experts, [[3, 2]])
    np.testing.assert_allclose(picks.shares, 3 / (1 + np.exp(-logits[:, [3, 2]])), rtol=1e-6)


@pytest.mark.parametrize(("num_best", "expected"), [(1, [0, 1]), (2, [3, 2])])
def test_experts_are_picked_in_the_best_groups_alone(num_best: int, expected: list[int]) -> None:
    """The first group has the best expert, the second the best two."""
    shares = jnp.log(jnp.asarray([[0.4, 0.01, 0.29, 0.3]]))
    routing = Routing(
        num_experts=4, num_picked=2, num_groups=2, num_picked_groups=1, num_best_of_group=num_best
    )  # fmt: skip
    assert pick(shares, routing).experts.tolist() == [expected]


@pytest.mark.parametrize(
    ("routing", "words"),
    [
        (Routing(num_experts=1 << 31, num_picked=2), "at most 4096 are served"),
        (Routing(num_experts=4, num_picked=5), "a token cannot pick 5 of 4 experts"),
        (Routing(num_experts=4, num_picked=2, num_groups=3), "4 experts cannot form 3 groups of one size"),
        (Routing(num_experts=4, num_picked=1, num_groups=2, num_picked_groups=3), "cannot pick 3 of 2 groups"),
        (Routing(num_experts=4, num_picked=3, num_groups=2, num_picked_groups=1), "3 experts in 1 groups of 2"),
    ],
)
def test_routing_that_cannot_be_is_refused(routing: Routing, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        routing.check()
