"""Pictures of about as many tokens, against transformers' own processor of Gemma 4."""

from __future__ import annotations

import base64
import io
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from engine.interface.errors import ModelError
from engine.interface.types import PictureInput
from server.media.decode_worker import DecodeJob, decode
from server.media.decoded_picture import DecodedPicture
from server.media.families.picture_formats import read_picture_format
from server.media.picture_decoder import DecodedTiles
from server.media.picture_format import PictureFormat
from tests.golden.pictures.tiny_pictures import waves

GOLDEN: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "golden" / "pictures" / "gemma4_sizes.json").read_text(encoding="utf-8")
)
PROCESSOR = {"patch_size": 2, "max_soft_tokens": 70, "image_mean": [0, 0, 0], "image_std": [1, 1, 1]}


def read(folder: Path, processor: dict[str, Any], *, max_tokens: int = 280) -> PictureFormat:
    config = {
        "model_type": "gemma4", "image_token_id": 0, "boi_token_id": 1, "eoi_token_id": 2,
        "vision_config": {"patch_size": 2},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "preprocessor_config.json").write_text(json.dumps(processor), encoding="utf-8")
    return read_picture_format(folder, PictureInput(0, 0, 64, 8, max_tokens), ("<p>", "<b>", "<e>").__getitem__)


def decoded(form: PictureFormat, width: int, height: int) -> DecodedPicture:
    file = io.BytesIO()
    Image.fromarray(waves(width, height)).save(file, "PNG")
    made = decode(file.getvalue(), DecodeJob(False, form.sizing_of("auto"), 5.0))
    pixels = [np.asarray(picture) for picture in made.pictures]
    return form.decoded(DecodedTiles(pixels, made.num_rows, made.num_columns))


def test_pixels_are_those_of_transformers(tmp_path: Path) -> None:
    form = read(tmp_path, PROCESSOR)
    for entry in GOLDEN:
        picture = decoded(form, *entry["size"])
        (tile,) = picture.tiles
        rows, columns = entry["grid"]
        assert tile.grid == (rows, columns)
        assert picture.text == "<b>" + "<p>" * tile.num_tokens + "<e>"
        assert tile.num_tokens == rows * columns <= 70
        expected = np.frombuffer(zlib.decompress(base64.b64decode(entry["pixels"])), np.uint8)
        expected = expected.reshape(rows, 3, 2, columns, 3, 2, 3).transpose(0, 3, 1, 4, 2, 5, 6)
        np.testing.assert_array_equal(tile.pixels, expected.reshape(tile.pixels.shape))


def test_the_budget_of_a_request(tmp_path: Path) -> None:
    form = read(tmp_path, {})
    assert form.max_tokens == 280
    few = form.with_switches({"max_soft_tokens": 70})
    assert 50 < decoded(few, 48, 48).tiles[0].num_tokens <= few.max_tokens == 70
    assert read(tmp_path, {}, max_tokens=100).max_tokens == 100
    for sizes in ((1, 300), (300, 1), (7, 5), (1, 1)):
        assert decoded(read(tmp_path, {}, max_tokens=1), *sizes).tiles[0].num_tokens == 1


@pytest.mark.parametrize(
    ("switches", "words"),
    [
        ({"max_soft_tokens": 71}, "max_soft_tokens is 71; it must be one of 70, 140, 280"),
        ({"max_soft_tokens": 560}, "max_soft_tokens is 560; it must be one of 70, 140, 280"),
        ({"max_soft_tokens": 280.0}, "max_soft_tokens is 280.0; it must be one of"),
        ({"max_soft_tokens": True}, "max_soft_tokens is true; it must be one of"),
        ({"max_pixels": 560}, 'has the name "max_pixels", .*; it has max_soft_tokens'),
    ],
)
def test_wrong_switches_are_refused_by_name(tmp_path: Path, switches: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"mm_processor_kwargs.*{words}"):
        read(tmp_path, {}).with_switches(switches)


@pytest.mark.parametrize(
    "changes", [{"patch_size": 5}, {"pooling_kernel_size": 2}, {"do_normalize": True}, {"image_mean": [1, 1, 1]}]
)
def test_other_settings_are_refused_by_name(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=next(iter(changes))):
        read(tmp_path, {**PROCESSOR, **changes})
