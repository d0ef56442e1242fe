"""Pictures of any size, against transformers' own processor of Qwen's models."""

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
from server.media.decode_worker import DecodeJob, PictureRefused, decode
from server.media.decoded_picture import DecodedPicture
from server.media.families.picture_formats import read_picture_format
from server.media.picture_decoder import DecodedTiles
from server.media.picture_format import PictureFormat
from server.media.tiling import NativeSize
from tests.golden.pictures.tiny_pictures import waves

GOLDEN: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "golden" / "pictures" / "qwen_sizes.json").read_text(encoding="utf-8")
)
PROCESSOR = {"min_pixels": 4 * 64, "max_pixels": 40 * 64, "patch_size": 4, "merge_size": 2}


def read(folder: Path, processor: dict[str, Any], *, max_tokens: int = 100) -> PictureFormat:
    config = {"model_type": "qwen2_5_vl", "image_token_id": 0, "vision_config": {"patch_size": 4}}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "preprocessor_config.json").write_text(json.dumps(processor), encoding="utf-8")
    return read_picture_format(folder, PictureInput(0, 0, 64, 8, max_tokens), ("<|image_pad|>",).__getitem__)


def decoded(form: PictureFormat, width: int, height: int) -> DecodedPicture:
    file = io.BytesIO()
    Image.fromarray(waves(width, height)).save(file, "PNG")
    made = decode(file.getvalue(), DecodeJob(False, form.sizing_of("auto"), 5.0))
    pixels = [np.asarray(picture) for picture in made.pictures]
    return form.decoded(DecodedTiles(pixels, made.num_rows, made.num_columns))


def test_patches_are_those_of_transformers(tmp_path: Path) -> None:
    form = read(tmp_path, PROCESSOR)
    for entry in GOLDEN:
        picture = decoded(form, *entry["size"])
        (tile,) = picture.tiles
        assert tile.grid == tuple(entry["grid"])
        expected = np.frombuffer(zlib.decompress(base64.b64decode(entry["patches"])), np.uint8)
        np.testing.assert_array_equal(tile.pixels, expected.reshape(tile.pixels.shape))
        assert tile.num_tokens == tile.grid[0] * tile.grid[1]
        assert picture.text == "<|image_pad|>" * tile.num_tokens


def test_pictures_of_equal_pixels_and_other_shapes_are_different(tmp_path: Path) -> None:
    form = read(tmp_path, PROCESSOR)
    wide, high = (form.decoded(DecodedTiles([np.zeros((*size, 3), np.uint8)], size[0] // 8, size[1] // 8))
                  for size in ((8, 16), (16, 8)))  # fmt: skip
    assert wide.tiles[0].digest != high.tiles[0].digest


@pytest.mark.parametrize(("least", "most", "expected"), [(40, 40, 40), (39, 40, 40), (1, 0.1, 1), (1000, 20, 20)])
def test_limits_that_are_near_to_each_other_hold(tmp_path: Path, least: float, most: float, expected: int) -> None:
    form = read(tmp_path, {**PROCESSOR, "min_pixels": int(least * 64), "max_pixels": int(most * 64)})
    assert form.max_tokens == expected
    for size in ((100, 90), (199, 1), (1, 199), (640, 480), (1, 1), (64, 40)):
        assert 1 <= decoded(form, *size).tiles[0].num_tokens <= expected


def test_no_picture_has_more_tokens_than_a_sequence(tmp_path: Path) -> None:
    form = read(tmp_path, PROCESSOR, max_tokens=12)
    for size in ((300, 300), (12, 1), (2000, 10), (10, 2000), (1, 1)):
        assert decoded(form, *size).tiles[0].num_tokens <= 12


def test_a_picture_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PictureRefused, match="has 201 × 1 pixels; a side may be at most 200 times as long"):
        decoded(read(tmp_path, PROCESSOR), 201, 1)


def test_settings_by_both_names(tmp_path: Path) -> None:
    sizes = {"size": {"shortest_edge": 4 * 64, "longest_edge": 40 * 64}}
    assert read(tmp_path, PROCESSOR) == read(tmp_path, sizes)
    assert read(tmp_path, {}).sizing == NativeSize(8, 4 * 64, 100 * 64, 3)


@pytest.mark.parametrize(
    "changes", [{"patch_size": 5}, {"merge_size": 4}, {"do_resize": False}, {"image_std": [0, 1, 1]}]
)
def test_other_settings_are_refused_by_name(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=next(iter(changes))):
        read(tmp_path, {**PROCESSOR, **changes})


def test_sizes_of_a_request(tmp_path: Path) -> None:
    form = read(tmp_path, PROCESSOR)
    for switches in ({"max_pixels": 6 * 64}, {"size": {"longest_edge": 6 * 64}, "min_pixels": None}):
        smaller = form.with_switches(switches)
        assert smaller.max_tokens == 6
        assert decoded(smaller, 97, 33).tiles[0].num_tokens <= 6 < decoded(form, 97, 33).tiles[0].num_tokens
    larger = form.with_switches({"min_pixels": 60 * 64, "max_pixels": 100 * 64})
    assert decoded(larger, 33, 33).tiles[0].num_tokens >= 60


@pytest.mark.parametrize(
    ("switches", "words"),
    [
        ({"do_pan_and_scan": True}, 'has the name "do_pan_and_scan", .*; it has min_pixels, max_pixels, size'),
        ({"max_pixels": 6401}, "max_pixels is 6401; it must be an integer from 1 to 6400"),
        ({"min_pixels": 1.5}, "min_pixels is 1.5; it must be an integer"),
        ({"max_pixels": 100}, r"from 256 \(min_pixels\) to 100 \(max_pixels\) pixels"),
        ({"size": 7}, "size is 7; it must be an object with shortest_edge and longest_edge"),
        ({"size": {"height": 7}}, "it must be an object with shortest_edge and longest_edge"),
        ({"size": {"longest_edge": "a"}}, 'size.longest_edge is "a"; it must be an integer'),
    ],
)
def test_wrong_sizes_of_a_request_are_refused_by_name(tmp_path: Path, switches: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"mm_processor_kwargs.*{words}"):
        read(tmp_path, PROCESSOR).with_switches(switches)
