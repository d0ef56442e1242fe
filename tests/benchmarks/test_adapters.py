"""The adapters of the benchmark change every product that they can, and are filled up as those of files are."""

from __future__ import annotations

from pathlib import Path

from benchmarks.adapters import random_adapter
from engine.adapters.adapter_stacks import padded_rank
from engine.adapters.targets import targets_of
from engine.models.open_model import open_model
from tests.benchmarks.models.tiny_model import write_tiny_model


def test_an_adapter_changes_every_target(tmp_path: Path) -> None:
    targets = targets_of(open_model(write_tiny_model(tmp_path / "tiny.gguf")).model)
    one, other = (random_adapter(targets, 5, seed) for seed in (0, 1))
    assert one.digest != other.digest
    assert one.pairs.keys() == {target.name for target in targets}
    for target in targets:
        down, up, rank = one.pairs[target.name]
        padded, parts = padded_rank(rank), len(target.parts)
        assert rank == 5
        assert down.shape == (len(target.layers), parts * padded, target.num_inputs)
        assert up.shape == (len(target.layers), padded, target.ends[-1])
        assert down.reshape(len(down), parts, padded, -1)[:, :, :rank].all()
        assert not up[:, rank:].any()
