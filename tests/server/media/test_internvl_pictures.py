"""InternVL's tiles, against transformers' own image processor."""

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
from engine.interface.types import IMAGENET_MEAN, IMAGENET_STD, PictureInput
from server.media.decode_worker import DecodeJob, decode
from server.media.decoded_picture import DecodedPicture
from server.media.families.picture_formats import read_picture_format
from server.media.picture_decoder import DecodedTiles
from server.media.picture_format import PictureFormat
from tests.golden.pictures.tiny_pictures import waves

GOLDEN: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "golden" / "pictures" / "internvl_tiles.json").read_text(encoding="utf-8")
)
PROCESSOR = {
    "size": {"height": 16, "width": 16}, "image_mean": list(IMAGENET_MEAN), "image_std": list(IMAGENET_STD),
    "crop_to_patches": False,
}  # fmt: skip


def read(folder: Path, processor: dict[str, Any], *, most: int = 64) -> PictureFormat:
    config = {"model_type": "internvl", "image_token_id": 0}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "preprocessor_config.json").write_text(json.dumps(processor), encoding="utf-8")
    return read_picture_format(folder, PictureInput(16, 16, 4, most, 4), ("#",).__getitem__)


def decoded(form: PictureFormat, width: int, height: int, detail: str = "auto") -> DecodedPicture:
    file = io.BytesIO()
    Image.fromarray(waves(width, height)).save(file, "PNG")
    made = decode(file.getvalue(), DecodeJob(False, form.sizing_of(detail), 5.0))
    pixels = [np.asarray(picture) for picture in made.pictures]
    return form.decoded(DecodedTiles(pixels, made.num_rows, made.num_columns))


def test_tiles_are_those_of_transformers(tmp_path: Path) -> None:
    for entry in GOLDEN:
        least, most = entry["tiles"]
        form = read(tmp_path, {**PROCESSOR, "min_patches": least, "max_patches": most})
        picture = decoded(form, *entry["size"])
        assert len(picture.tiles) == entry["num_tiles"], entry["size"]
        assert picture.text == "<img>" + "#" * 4 * entry["num_tiles"] + "</img>"
        pixels = np.stack([tile.pixels for tile in picture.tiles])
        expected = np.frombuffer(zlib.decompress(base64.b64decode(entry["pixels"])), np.uint8).reshape(pixels.shape)
        np.testing.assert_array_equal(pixels, expected)
        assert len(picture.tiles) * 4 <= form.max_tokens


def test_switches_and_detail(tmp_path: Path) -> None:
    form = read(tmp_path, PROCESSOR)
    assert form.max_tokens == 13 * 4
    assert len(decoded(form, 97, 33).tiles) == 13
    assert len(decoded(form, 97, 33, "low").tiles) == 1
    assert len(decoded(form.with_switches({"crop_to_patches": False}), 97, 33).tiles) == 1
    few = form.with_switches({"min_patches": 2, "max_patches": 3})
    assert (len(decoded(few, 97, 33).tiles), few.max_tokens) == (4, 16)


def test_a_picture_never_has_more_tiles_than_a_request_may_hold(tmp_path: Path) -> None:
    for most in (1, 2, 3, 5):
        form = read(tmp_path, {**PROCESSOR, "min_patches": 5}, most=most)
        for size in ((1, 4000), (4000, 1), (48, 48)):
            assert len(decoded(form, *size).tiles) <= max(most, 2)
        with pytest.raises(ValueError, match=r"max_patches is 64; it must be an integer from 1 to"):
            form.with_switches({"max_patches": 64})


@pytest.mark.parametrize(
    ("switches", "words"),
    [
        ({"max_patches": 1 << 31}, "max_patches is 2147483648; it must be an integer from 1 to 63"),
        ({"max_patches": 0}, "max_patches is 0; it must be"),
        ({"min_patches": 2.0}, "min_patches is 2.0; it must be"),
        ({"min_patches": 5, "max_patches": 4}, r"from 5 \(min_patches\) to 4 \(max_patches\)"),
        ({"min_patches": 13}, r"from 13 \(min_patches\) to 12 \(max_patches\)"),
        ({"crop_to_patches": 1}, "crop_to_patches is 1; it must be true or false"),
        ({"size": 8}, 'has the name "size", .*; it has crop_to_patches, min_patches, max_patches'),
    ],
)
def test_wrong_switches_are_refused_by_name(tmp_path: Path, switches: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"mm_processor_kwargs.*{words}"):
        read(tmp_path, PROCESSOR).with_switches(switches)


@pytest.mark.parametrize(
    "changes",
    [
        {"size": {"height": 8, "width": 16}},
        {"max_patches": 1 << 31},
        {"max_patches": 0},
        {"min_patches": 4, "max_patches": 3},
        {"do_resize": False},
        {"image_mean": [1, 1]},
    ],
)
def test_other_settings_are_refused_by_name(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=next(iter(changes))):
        read(tmp_path, {**PROCESSOR, **changes})


def test_an_encoder_of_pictures_of_any_size_is_refused(tmp_path: Path) -> None:
    read(tmp_path, {})
    with pytest.raises(ModelError, match=r'model_type is "internvl"; the encoder .* takes other pictures'):
        read_picture_format(tmp_path, PictureInput(0, 0, 64, 64, 256), ("#",).__getitem__)
