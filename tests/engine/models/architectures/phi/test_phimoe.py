"""What configurations of Phi's mixtures may say beside what the golden says, and what is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.interface.errors import ModelError
from engine.models.architectures.phi.phimoe import PhiMoe
from tests.engine.models.test_configurations import opened


def test_a_long_context_has_the_factors_and_the_magnitude_of_long_ones(tmp_path: Path) -> None:
    model = opened(tmp_path, "phimoe", {"original_max_position_embeddings": 64}).model
    assert isinstance(model, PhiMoe)
    assert model.config.longrope is not None
    assert model.config.rotary == (model.config.longrope.long,)
    assert model.for_context(64).config.rotary == (model.config.longrope.short,)
    assert (model.config.longrope.short.magnitude, model.config.longrope.long.magnitude) == (1.25, 1.5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lm_head_bias": False}, "lm_head_bias is false"),
        ({"num_experts_per_tok": 3}, "num_experts_per_tok is 3; of this architecture it must be 2"),
        ({"num_local_experts": 1}, "num_local_experts is 1"),
        ({"num_local_experts": 1 << 31}, "num_local_experts is|experts each"),
        ({"attention_bias": False}, "bias"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        opened(tmp_path, "phimoe", changes)
