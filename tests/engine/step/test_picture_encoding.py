"""The programs of encoders of pictures."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import jax

from engine.backends.base.token_layout import pages_per_block
from engine.step import picture_encoding
from engine.step.inputs import StepBatch
from engine.step.programs import ArrayTrees
from engine.step.shapes import StepShape
from sampling.state import Slots
from tests.engine.step.test_exact_products import PICTURES, Lowered
from tests.golden.pictures.tiny_folder import write_tiny_folder


def test_kept_programs_are_nested_as_those_that_are_compiled(tmp_path: Path) -> None:
    """Else JAX cannot load them at the next start, and they are compiled anew."""
    golden = json.loads((PICTURES / "smolvlm.json").read_text(encoding="utf-8"))
    lowered = Lowered(write_tiny_folder(tmp_path, golden), "float32")
    batch = StepBatch.padding(StepShape(1, 0), 1, pages_per_block(32))
    trees = ArrayTrees(lowered.params, lowered.kv, Slots.zeros(1), Mock(), batch)
    assert lowered.model.encoder is not None
    lowerings = picture_encoding.lowerings(lowered.params, lowered.kv, lowered.model.encoder, 128, lowered.backends)
    assert {key[0] for key in lowerings if isinstance(key, tuple)} == {
        picture_encoding.BEGIN, picture_encoding.LAYER, picture_encoding.END, picture_encoding.STORE,
    }  # fmt: skip
    for key, lower in lowerings.items():
        program, kept = lower(), trees.of(key)
        assert program.in_tree == jax.tree.structure((kept.arguments, {}))
        assert program.out_tree == jax.tree.structure(kept.results)
