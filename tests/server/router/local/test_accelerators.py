"""Servers on one machine never share a GPU."""

from pathlib import Path

import pytest

from server.router.local.accelerators import VISIBLE_GPUS, gpu_of_each
from server.startup.settings import SettingsError


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, ["0", "1"]),
        ({VISIBLE_GPUS: "2, GPU-7f, 5"}, ["2", "GPU-7f"]),
        ({"JAX_PLATFORMS": "cuda,cpu"}, ["0", "1"]),
        ({"JAX_PLATFORMS": "cpu"}, None),
        ({VISIBLE_GPUS: ""}, None),
        ({VISIBLE_GPUS: "-1"}, None),
    ],
)
def test_each_server_has_a_gpu_of_its_own(
    environment: dict[str, str], wanted: list[str] | None, tmp_path: Path
) -> None:
    for number in range(3):
        (tmp_path / f"0000:0{number}:00.0").mkdir()
    assert gpu_of_each(2, environment, has_plugin=True, gpus=tmp_path) == wanted
    assert gpu_of_each(2, environment, has_plugin=False, gpus=tmp_path) is None
    assert gpu_of_each(2, {}, has_plugin=True, gpus=tmp_path / "no driver") is None


def test_too_few_gpus_are_refused_by_name() -> None:
    with pytest.raises(SettingsError, match="data_parallel is 2 and this machine shows 1 GPUs"):
        gpu_of_each(2, {VISIBLE_GPUS: "0"}, has_plugin=True)
