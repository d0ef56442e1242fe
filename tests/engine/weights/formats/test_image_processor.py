"""What image processors say of colours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from engine.interface.errors import ModelError
from engine.models.encoders.vision_encoder import Colours
from engine.models.open_model import open_model
from engine.weights.formats.image_processor import image_processor, stated_colours
from engine.weights.formats.model_folder import Folder, JsonFile
from tests.golden.pictures.tiny_folder import write_tiny_folder

MEAN, DEVIATION = [0.1, 0.2, 0.3], [0.4, 0.5, 0.6]


def stated(values: dict[str, Any]) -> dict[str, Any]:
    return stated_colours(JsonFile(Path("preprocessor_config.json"), values))


def test_colours_are_those_that_are_stated() -> None:
    assert stated({}) == {}
    assert stated({"image_mean": MEAN, "do_normalize": True, "rescale_factor": 1 / 255}) == {"image_mean": MEAN}
    both = {"image_mean": MEAN, "image_std": DEVIATION}
    assert stated(both) == both
    assert stated({**both, "do_normalize": False}) == {"image_mean": [0, 0, 0], "image_std": [1, 1, 1]}


@pytest.mark.parametrize(
    "values",
    [
        {"do_rescale": False}, {"rescale_factor": 1 / 127.5}, {"rescale_factor": 0}, {"image_mean": [0.5]},
        {"image_mean": 0.5}, {"image_mean": [0.5, 0.5, True]}, {"image_std": [1, 1, 0]}, {"image_std": [1, 1, 1e-320]},
        {"image_std": [1e300, 1, 1]}, {"do_normalize": 1},
    ],
)  # fmt: skip
def test_what_no_encoder_is_given_is_refused_by_name(values: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=next(iter(values))):
        stated(values)


def test_settings_in_either_file(tmp_path: Path) -> None:
    assert image_processor(Folder(tmp_path)) is None
    nested = {"image_processor": {"image_mean": MEAN}}
    (tmp_path / "processor_config.json").write_text(json.dumps(nested), encoding="utf-8")
    found = image_processor(Folder(tmp_path))
    assert found is not None
    assert found.value("image_mean") == MEAN


def test_an_encoder_takes_the_colours_of_its_folder(tmp_path: Path) -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3) * 10
    usual = open_model(write_tiny_folder(tmp_path)).model.encoder
    (tmp_path / "preprocessor_config.json").write_text(
        json.dumps({"image_mean": MEAN, "image_std": DEVIATION}), encoding="utf-8"
    )
    encoder = open_model(tmp_path).model.encoder
    assert usual is not None
    assert encoder is not None
    assert usual.colours == Colours((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    expected = (pixels / 255 - np.array(MEAN)) / np.array(DEVIATION)
    np.testing.assert_allclose(np.asarray(encoder.colours.normalized(jnp.asarray(pixels))), expected, atol=1e-6)
