"""What attention takes of a model's constants, whichever backend computes it."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from engine.backends.base.operands import AttentionConstants, Norm, NormKind

WEIGHT = jnp.ones((1, 16))


def constants(q_norm: Norm | None, k_norm: Norm | None) -> AttentionConstants:
    nowhere = np.zeros(1, np.int32)
    return AttentionConstants(2, 0.25, jnp.zeros((1, 1, 16)), nowhere, nowhere, q_norm=q_norm, k_norm=k_norm)


@pytest.mark.parametrize(
    ("q_norm", "k_norm", "words"),
    [
        (Norm(WEIGHT, 1e-6, NormKind.LAYER), None, "takes RMS norms alone"),
        (None, Norm(WEIGHT, 1e-6, bias=WEIGHT), "takes RMS norms alone"),
        (Norm(WEIGHT, 1e-6), Norm(WEIGHT, 1e-5), "differ in epsilon: 1e-06 and 1e-05"),
    ],
)
def test_norms_that_a_body_would_compute_as_others_are_refused(
    q_norm: Norm | None, k_norm: Norm | None, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        constants(q_norm, k_norm)


def test_one_norm_or_two_alike_are_taken() -> None:
    norm = Norm(WEIGHT, 1e-6)
    assert constants(norm, None).q_norm is norm
    assert constants(norm, norm).k_norm is norm
