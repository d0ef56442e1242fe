"""Writes the C++ header of the names by which the native sampler reads a step.

    python -m engine.backends.native.sample_header

The names follow from sampling/host/features.py and sampling/registry.py. The header is committed, so that a build needs
no JAX; a test compares it with what this file would write.
"""

from collections.abc import Iterable, Mapping

import jax

from engine.backends.native.sources import SOURCES
from sampling.host.params import MAX_LOGPROBS
from sampling.host.rows import BITS, FLOAT_COLUMNS, INT_COLUMNS, NOTHING_LEFT
from sampling.logprobs import BEST, BEST_IDS, LISTED, MASKED, OWN, RANK, TOKEN
from sampling.processors.logits_processor import FeatureStates, StateShape
from sampling.registry import STATEFUL
from sampling.state import state_shapes

HEADER = SOURCES / "sampling/sample_columns.h"

_WIDTH = 118  # of a line of enumerators


def state_names(states: FeatureStates) -> list[str]:
    """The names of the states' arrays in the order of `jax.tree.leaves`, with the field's where there are several."""
    paths = jax.tree_util.tree_flatten_with_path(states)[0]
    return ["_".join(jax.tree_util.keystr((key,), simple=True) for key in path) for path, _ in paths]


def is_updated(states: FeatureStates) -> list[bool]:
    """Which of the arrays a step changes, in the same order: all those of a feature that it updates."""
    updated = {name: jax.tree.map(lambda _, name=name: STATEFUL[name].is_updated, states[name]) for name in states}
    return jax.tree.leaves(updated)


def header() -> str:
    """The text of the header."""
    states = state_shapes(StateShape(1, 1, 1))
    names = [f"{_camel(name)}State" for name in state_names(states)]
    updated = [name for name, changes in zip(names, is_updated(states), strict=True) if changes]
    bits = {f"Uses{_camel(name)}": bit for name, bit in BITS.items()}
    output = {
        "Token": TOKEN, "OwnLogprob": OWN, "Rank": RANK, "MaskedShare": MASKED, "BestIds": BEST_IDS,
        "BestLogprobs": BEST, "ListedLogprobs": LISTED,
    }  # fmt: skip
    return f"""\
// The names by which the sampler reads a step and writes its result. Generated from the declarations in
// sampling/host/features.py by: python -m engine.backends.native.sample_header
#pragma once

#include <cstdint>

namespace eagre {{

// Columns of the rows' integers and of their floats.
{_enum("IntColumn", [*map(_camel, INT_COLUMNS), "NumInts"])}
{_enum("FloatColumn", [*map(_camel, FLOAT_COLUMNS), "NumFloats"])}
// Bits of the column kUses.
{_enum("Uses : uint32_t", bits)}
// The arrays of the features' states, in the order in which a step passes them.
{_enum("StateArray", [*names, "NumStateArrays"])}
// Those that a step changes, in the order in which it returns them.
constexpr StateArray kUpdatedStates[] = {{{", ".join(f"k{name}" for name in updated)}}};

// Columns of the output of a row that uses logprobs.
{_enum("OutputColumn", output)}
constexpr int kMostLogprobs = {MAX_LOGPROBS};

// In the place of a token, beyond the vocabulary: a logit is NaN (+ 0), the request allows no token (+ this).
constexpr int kNothingLeft = {NOTHING_LEFT};

}}  // namespace eagre
"""


def _camel(name: str) -> str:
    """TopNSigma of top_n_sigma."""
    return "".join(word.capitalize() for word in name.split("_"))


def _enum(name: str, enumerators: Iterable[str] | Mapping[str, int]) -> str:
    values = enumerators if isinstance(enumerators, Mapping) else dict.fromkeys(enumerators)
    lines = [""]
    for enumerator, value in values.items():
        entry = f"k{enumerator}," if value is None else f"k{enumerator} = {value},"
        if len(lines[-1]) + len(entry) > _WIDTH:
            lines.append("")
        lines[-1] += f" {entry}"
    backend = "\n ".join(lines)
    return f"enum {name} {{\n {backend}\n}};\n"


if __name__ == "__main__":
    HEADER.write_text(header(), encoding="utf-8")
