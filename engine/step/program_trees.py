"""How the arguments and the results of the programs are nested, which is told without tracing them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

from cache.storage import KVPages
from engine.step.batch import StepBatch
from engine.step.shapes import StepShape
from engine.weights.layout import Params
from sampling.host.rows import SamplerVariant, SamplingRows
from sampling.processors.feature import FeatureStates
from sampling.state import Slots


class ProgramTrees(NamedTuple):
    """The trees of one program; their leaves may be anything."""

    arguments: tuple[Any, ...]
    results: Any


class StepArrays(NamedTuple):
    """What the programs of an engine work on."""

    params: Params
    kv: KVPages
    slots: Slots
    states: FeatureStates

    def trees_of(self, key: Hashable) -> ProgramTrees:
        """The trees of a program, by the key that `DeviceRunner` knows it by; a number stands for an array."""
        params, kv, slots, states = self
        batch, rows = StepBatch._make([0] * 4), SamplingRows._make([0] * 2)
        match key:
            case "forward", StepShape(num_tiles=num_tiles):
                return ProgramTrees((params, kv, slots, batch), (0, kv, 0) if num_tiles else (0, kv))
            case "sample", _, SamplerVariant.FULL:
                return ProgramTrees((0, slots, states, rows, 0), (slots, states, 0))
            case "sample", _, _:
                return ProgramTrees((0, slots, rows), (slots, 0))
            case "chunk", _, _:
                return ProgramTrees((params, kv, slots, batch, rows), (kv, slots, 0))
            case "write", str() as name:
                return ProgramTrees((states[name], 0, states[name]), states[name])
            case "score" | "pool":
                return ProgramTrees((params, 0, 0, 0), 0)
            case "read page":
                return ProgramTrees((kv, 0), _page_of(kv))
            case "write page":
                return ProgramTrees((kv, 0, _page_of(kv)), kv)
        raise KeyError(key)


def _page_of(kv: KVPages) -> tuple[int, ...]:
    return (0,) if kv.scales is None else (0, 0)
