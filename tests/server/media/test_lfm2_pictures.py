"""LFM2-VL's pictures and their tiles, against transformers' own processor."""

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
    (Path(__file__).parents[2] / "golden" / "pictures" / "lfm2_sizes.json").read_text(encoding="utf-8")
)
PROCESSOR = {
    "encoder_patch_size": 2, "downsample_factor": 2, "tile_size": 8, "min_image_tokens": 4, "max_image_tokens": 20,
}  # fmt: skip


def read(folder: Path, processor: dict[str, Any], *, most: int = 64, max_tokens: int = 1024) -> PictureFormat:
    config = {"model_type": "lfm2_vl", "image_token_id": 0, "vision_config": {"patch_size": 2}}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "preprocessor_config.json").write_text(json.dumps(processor), encoding="utf-8")
    return read_picture_format(folder, PictureInput(0, 0, 4, most, max_tokens), ("#",).__getitem__)


def decoded(form: PictureFormat, width: int, height: int, detail: str = "auto") -> DecodedPicture:
    file = io.BytesIO()
    Image.fromarray(waves(width, height)).save(file, "PNG")
    made = decode(file.getvalue(), DecodeJob(False, form.sizing_of(detail), 5.0))
    return form.decoded(DecodedTiles([np.asarray(each) for each in made.pictures], made.num_rows, made.num_columns))


def test_tiles_and_texts_are_those_of_transformers(tmp_path: Path) -> None:
    for entry in GOLDEN:
        picture = decoded(read(tmp_path, {**PROCESSOR, **entry["changes"]}), *entry["size"])
        if max(rows * columns for rows, columns, _ in entry["tiles"]) > 20:  # transformers breaks its own limit
            assert picture.tiles[-1].num_tokens == 20
            continue
        assert picture.text == entry["text"], entry["size"]
        assert [tile.grid for tile in picture.tiles] == [(rows, columns) for rows, columns, _ in entry["tiles"]]
        for tile, (rows, columns, stored) in zip(picture.tiles, entry["tiles"], strict=True):
            expected = np.frombuffer(zlib.decompress(base64.b64decode(stored)), np.uint8)
            expected = expected.reshape(rows, 2, 2, columns, 2, 2, 3).transpose(0, 3, 1, 4, 2, 5, 6)
            np.testing.assert_array_equal(tile.pixels, expected.reshape(tile.pixels.shape))


def test_switches_and_detail(tmp_path: Path) -> None:
    form = read(tmp_path, PROCESSOR)
    whole = decoded(form, 97, 33, "low")
    assert whole.text == "<|image_start|>" + "#" * whole.tiles[0].num_tokens + "<|image_end|>"
    assert len(decoded(form, 97, 33).tiles) == 4
    few = form.with_switches({"max_tiles": 3, "use_thumbnail": False, "max_image_tokens": 10})
    assert len(decoded(few, 97, 33).tiles) == 3
    assert few.max_tokens == 3 * 4 + 10
    assert len(decoded(form.with_switches({"do_image_splitting": False}), 97, 33).tiles) == 1


@pytest.mark.parametrize("size", [(4000, 1), (1, 4000), (1, 1), (300, 290), (64, 1)])
def test_no_tile_is_larger_than_the_encoder_takes(tmp_path: Path, size: tuple[int, int]) -> None:
    """Even of pictures that transformers' processor would make larger than its own limit."""
    for changes in ({}, {"min_image_tokens": 20}, {"max_image_tokens": 1, "min_image_tokens": 1}):
        for most, max_tokens in ((64, 1024), (64, 3), (4, 20), (1, 4)):
            form = read(tmp_path, {**PROCESSOR, **changes}, most=most, max_tokens=max_tokens)
            tiles = decoded(form, *size).tiles
            assert all(1 <= tile.num_tokens <= max_tokens for tile in tiles)
            assert sum(tile.num_tokens for tile in tiles) <= form.max_tokens


@pytest.mark.parametrize(
    ("switches", "words"),
    [
        ({"max_tiles": 1 << 31}, "max_tiles is 2147483648; it must be an integer from 1 to"),
        ({"min_tiles": 0}, "min_tiles is 0; it must be"),
        ({"min_tiles": 5, "max_tiles": 4}, r"min_tiles is 5; it must not be above max_tiles \(4\)"),
        ({"max_image_tokens": 1025}, "max_image_tokens is 1025; it must be an integer from 1 to 1024"),
        ({"min_image_tokens": 21}, r"min_image_tokens is 21; it must not be above max_image_tokens \(20\)"),
        ({"use_thumbnail": "no"}, 'use_thumbnail is "no"; it must be true or false'),
        ({"tile_size": 8}, 'has the name "tile_size", .*; it has do_image_splitting, use_thumbnail'),
    ],
)
def test_wrong_switches_are_refused_by_name(tmp_path: Path, switches: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"mm_processor_kwargs.*{words}"):
        read(tmp_path, PROCESSOR).with_switches(switches)


@pytest.mark.parametrize(
    "changes",
    [
        {"encoder_patch_size": 4},
        {"downsample_factor": 3},
        {"tile_size": 10},
        {"tile_size": 0},
        {"max_tiles": 1 << 31},
        {"min_tiles": 5, "max_tiles": 4},
        {"min_image_tokens": 21},
        {"do_resize": False},
        {"image_mean": [1, 1]},
    ],
)
def test_other_settings_are_refused_by_name(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=next(iter(changes))):
        read(tmp_path, {**PROCESSOR, **changes})
