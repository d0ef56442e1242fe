"""The list of features: what of it must hold whatever it says, and that the scheduler knows it without JAX."""

import subprocess
import sys

import pytest

from sampling.host.features import FEATURES, Stage
from sampling.host.params import NUMBERS

HOST_LOGIC = ("engine.schedule.scheduler", "sampling.host.features", "sampling.host.rows", "sampling.host.rows")


def test_names_and_columns_are_there_once():
    names = [feature.name for feature in FEATURES]
    columns = [column.name for feature in FEATURES for column in feature.columns]
    assert len(set(names)) == len(names)
    assert len(set(columns)) == len(columns)
    assert set(columns) <= NUMBERS.keys()


def test_stages_follow_one_another():
    stages = [feature.stage.value for feature in FEATURES]
    assert stages == sorted(stages)


def test_a_cut_has_a_column_that_turns_it_on():
    assert all(feature.columns for feature in FEATURES if feature.stage is Stage.FILTER)


@pytest.mark.parametrize("module", HOST_LOGIC)
def test_host_logic_comes_without_jax(module):
    """Not even by way of others: tests of the scheduler shall not wait for it."""
    program = f"import {module}, sys; print('jax' in sys.modules)"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == "False"
