"""The columns and bits that sample_columns.h repeats are those of the Python files that it names."""

from __future__ import annotations

import re

import pytest

from engine.kernels.native.sources import SOURCES
from sampling import logprobs
from sampling.host import rows
from sampling.host.packed import WORD_BITS
from sampling.host.params import MAX_LOGPROBS
from sampling.host.usage import BITS
from sampling.processors.dry import MAX_DRY_PENALTY

HEADER = (SOURCES / "sampling/sample_columns.h").read_text(encoding="utf-8")


def enumerators(enum: str) -> dict[str, str]:
    """Name and what it is set to, if anything, of each; in their order."""
    found = re.search(rf"enum {enum}\b[^{{]*{{([^}}]*)}}", HEADER)
    assert found is not None, enum
    entries = [entry.partition("=") for entry in found[1].split(",")]
    return {name.strip(): value.strip() for name, _, value in entries}


def python_name(name: str) -> str:
    """TOP_N_SIGMA of kTopNSigma."""
    return re.sub(r"(?<=.)(?=[A-Z])", "_", name.removeprefix("k")).upper()


def constant(file: str, name: str) -> float:
    found = re.search(rf"\b{name} = ([-\d.e+]+)", (SOURCES / file).read_text(encoding="utf-8"))
    assert found is not None, name
    return float(found[1])


@pytest.mark.parametrize(("enum", "count"), [("IntColumn", rows.NUM_INTS), ("FloatColumn", rows.NUM_FLOATS)])
def test_columns_of_a_row(enum: str, count: int):
    names = enumerators(enum)
    assert not any(names.values())  # they count from 0
    assert [getattr(rows, python_name(name)) for name in names] == list(range(count + 1))


def test_bits_of_the_features():
    shifts = {
        python_name(name.removesuffix("Feature")).lower(): int(value.removeprefix("1u << "))
        for name, value in enumerators("Feature").items()
    }
    assert {name: 1 << shift for name, shift in shifts.items()} == BITS


def test_columns_of_the_output():
    assert constant("sampling/sample_columns.h", "kMostLogprobs") == MAX_LOGPROBS
    columns, value = {}, 0
    for name, expression in enumerators("OutputColumn").items():
        if expression:
            value = columns[expression.removesuffix(" + kMostLogprobs")] + MAX_LOGPROBS
        columns[name] = value
        value += 1
    assert columns == {
        "kToken": logprobs.TOKEN, "kOwnLogprob": logprobs.OWN, "kRank": logprobs.RANK, "kBestIds": logprobs.BEST_IDS,
        "kBestLogprobs": logprobs.BEST, "kListedLogprobs": logprobs.LISTED,
    }  # fmt: skip


def test_other_numbers():
    assert constant("sampling/sample_columns.h", "kNothingLeft") == rows.NOTHING_LEFT
    assert constant("sampling/sampler.cc", "kWordBits") == WORD_BITS
    assert constant("processors/repetition.cc", "kMostPenalty") == MAX_DRY_PENALTY
