"""What C++ and Python must agree on: the generated header, and the numbers that C++ repeats."""

from __future__ import annotations

import re

from engine.backends.native.sample_header import HEADER, header, is_updated, state_names
from engine.backends.native.sources import SOURCES
from sampling.host.grammar import WORD_BITS
from sampling.processors.dry import MAX_DRY_PENALTY
from sampling.state import allocate_states
from tests.sampling.batches import rubbish, shape_of


def constant(file: str, name: str) -> float:
    found = re.search(rf"\b{name} = ([-\d.e+]+)", (SOURCES / file).read_text(encoding="utf-8"))
    assert found is not None, name
    return float(found[1])


def test_the_header_is_that_of_the_declarations():
    """If not, `python -m engine.backends.native.sample_header` writes it anew."""
    assert HEADER.read_text(encoding="utf-8") == header()


def test_every_state_array_has_a_name_of_its_own():
    states = allocate_states(shape_of(40), rubbish)
    names = state_names(states)
    assert len(set(names)) == len(names)
    assert {"history", "penalties_counts", "penalties_prompt", "logit_bias_values"} <= set(names)
    changed = [name for name, changes in zip(names, is_updated(states), strict=True) if changes]
    assert changed == ["history", "penalties_counts", "penalties_prompt"]


def test_other_numbers():
    assert constant("sampling/sampler.cc", "kWordBits") == WORD_BITS
    assert constant("processors/repetition.cc", "kMostPenalty") == MAX_DRY_PENALTY
