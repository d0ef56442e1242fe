"""What rows carry to the device."""

import numpy as np
import pytest

from sampling.host import rows as columns
from sampling.host.features import FEATURES, Stage
from sampling.host.params import MAX_INT32, SamplingParams
from sampling.host.rows import (
    FLOAT_COLUMNS,
    INT_COLUMNS,
    NUM_FLOATS,
    NUM_INTS,
    SamplingRows,
    value_when_off,
    values_of,
)


def row_of(params: SamplingParams, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rows = SamplingRows.padding(3, 8)
    rows.set(1, 5, params, seed=seed, num_prompt_tokens=17, uses=6)
    return rows.ints[1], rows.floats[1]


def test_padding_has_a_slot_past_the_end_and_asks_for_nothing():
    rows = SamplingRows.padding(3, 8)
    assert (rows.ints.shape, rows.floats.shape) == ((3, NUM_INTS), (3, NUM_FLOATS))
    assert (rows.ints.dtype, rows.floats.dtype) == (np.int32, np.float32)
    assert (rows.ints[:, columns.SLOT] == 8).all()
    assert (rows.ints[:, columns.USES] == 0).all()
    assert (values_of("repetition_penalty", rows) == 1.0).all()
    for feature in FEATURES:
        if feature.stage is Stage.FILTER:
            first = feature.columns[0].name
            assert (values_of(first, rows) == value_when_off(first)).all()


def test_a_request_is_written_into_its_row_alone():
    rows = SamplingRows.padding(3, 8)
    before = SamplingRows(rows.ints.copy(), rows.floats.copy())
    rows.set(1, 5, SamplingParams(top_k=9), seed=1, num_prompt_tokens=17, uses=6)
    for row in (0, 2):
        assert np.array_equal(rows.ints[row], before.ints[row])
        assert np.array_equal(rows.floats[row], before.floats[row])


def test_every_column_has_its_value():
    params = SamplingParams(
        temperature=0.5, top_k=9, top_p=0.25, min_p=0.125, typical_p=0.75, top_n_sigma=1.5, presence_penalty=-1.0,
        frequency_penalty=0.5, repetition_penalty=1.25, dry_multiplier=2.0, dry_base=1.5, dry_allowed_length=4,
        dry_penalty_last_n=33, xtc_probability=0.375, xtc_threshold=0.0625, min_tokens=11,
    )  # fmt: skip
    ints, floats = row_of(params)
    whole = {
        "slot": 5, "top_k": 9, "uses": 6, "num_prompt_tokens": 17, "min_tokens": 11, "dry_allowed_length": 4,
        "dry_penalty_last_n": 33,
    }  # fmt: skip
    real = {
        "temperature": 0.5, "top_p": 0.25, "min_p": 0.125, "typical_p": 0.75, "top_n_sigma": 1.5,
        "presence_penalty": -1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.25, "dry_multiplier": 2.0,
        "dry_base": 1.5, "xtc_probability": 0.375, "xtc_threshold": 0.0625,
    }  # fmt: skip
    assert {name: int(ints[INT_COLUMNS[name]]) for name in whole} == whole
    assert {name: float(floats[FLOAT_COLUMNS[name]]) for name in real} == real


def test_the_named_columns_are_those_of_the_constants():
    for name in ("slot", "position", "seed_low", "seed_high", "uses", "num_prompt_tokens"):
        assert INT_COLUMNS[name] == getattr(columns, name.upper())
    assert FLOAT_COLUMNS["temperature"] == columns.TEMPERATURE


def test_numbers_that_mean_everything():
    ints, _ = row_of(SamplingParams(top_k=-1, dry_penalty_last_n=-1))
    assert (ints[INT_COLUMNS["top_k"]], ints[INT_COLUMNS["dry_penalty_last_n"]]) == (0, MAX_INT32)
    ints, _ = row_of(SamplingParams(top_k=10**30, min_tokens=10**12, max_tokens=10**12))
    assert (ints[INT_COLUMNS["top_k"]], ints[INT_COLUMNS["min_tokens"]]) == (MAX_INT32, MAX_INT32)


@pytest.mark.parametrize("seed", [0, 1, -1, 2**31, 2**32 - 1, 2**63 - 1, -(2**63), 0x1234_5678_9ABC_DEF0])
def test_a_seed_keeps_its_64_bits(seed):
    ints, _ = row_of(SamplingParams(), seed=seed)
    low, high = (int(word) % 2**32 for word in ints[[columns.SEED_LOW, columns.SEED_HIGH]])
    assert low | high << 32 == seed % 2**64


@pytest.mark.parametrize("name", ["top_p", "typical_p", "top_n_sigma", "repetition_penalty", "dry_multiplier"])
@pytest.mark.parametrize("value", [1e-320, 1e-50, 1e-40])
def test_what_is_above_zero_is_so_on_the_device(name, value):
    _, floats = row_of(SamplingParams(**{name: value}))
    assert floats[FLOAT_COLUMNS[name]] >= np.finfo(np.float32).tiny


def test_what_is_off_at_zero_stays_off():
    _, floats = row_of(SamplingParams())
    off = [FLOAT_COLUMNS[name] for name in ("min_p", "top_n_sigma", "dry_multiplier", "xtc_probability")]
    assert (floats[off] == 0.0).all()
