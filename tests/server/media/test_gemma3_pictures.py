"""Pictures with crops, against transformers' own processor of Gemma 3."""

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
from server.media.tiling import Tiling
from tests.golden.pictures.tiny_pictures import waves

GOLDEN: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "golden" / "pictures" / "gemma3_crops.json").read_text(encoding="utf-8")
)
WHOLE = "\n\n<boi><soft><soft><soft><eoi>\n\n"


def read(folder: Path, processor: dict[str, Any] | None = None) -> PictureFormat:
    config = {"model_type": "gemma3", "boi_token_index": 0, "image_token_index": 1, "eoi_token_index": 2}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if processor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(processor), encoding="utf-8")
    return read_picture_format(folder, PictureInput(16, 16, 3, 8, 3), ("<boi>", "<soft>", "<eoi>").__getitem__)


def decoded(form: PictureFormat, width: int, height: int, detail: str = "auto") -> DecodedPicture:
    file = io.BytesIO()
    Image.fromarray(waves(width, height)).save(file, "PNG")
    made = decode(file.getvalue(), DecodeJob(False, form.sizing_of(detail), 5.0))
    pixels = [np.asarray(picture) for picture in made.pictures]
    return form.decoded(DecodedTiles(pixels, made.num_rows, made.num_columns))


def test_crops_are_those_of_transformers(tmp_path: Path) -> None:
    form = read(tmp_path)
    for entry in GOLDEN:
        switches = {"do_pan_and_scan": True, "pan_and_scan_min_crop_size": entry["min_crop_size"]}
        picture = decoded(form.with_switches(switches), *entry["size"])
        assert len(picture.tiles) == 1 + entry["num_crops"]
        expected = np.frombuffer(zlib.decompress(base64.b64decode(entry["pixels"])), np.uint8)
        got = np.stack([tile.pixels for tile in picture.tiles])
        assert np.abs(got.astype(int) - expected.reshape(got.shape)).max() == 0
        crops = " ".join([WHOLE] * entry["num_crops"])
        expected_text = f"Here is the original image {WHOLE} and here are some crops to help you see better {crops}"
        assert picture.text == (expected_text if crops else WHOLE)
        assert picture.text.count("<soft>") == sum(tile.num_tokens for tile in picture.tiles)


def test_crops_are_made_only_where_they_are_wanted(tmp_path: Path) -> None:
    form = read(tmp_path)
    wanted = form.with_switches({"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 16})
    assert [len(decoded(each, 97, 33).tiles) for each in (form, wanted)] == [1, 4]
    assert len(decoded(wanted, 97, 33, "low").tiles) == 1
    assert (form.max_tokens, wanted.max_tokens) == (3, 15)
    # As transformers' Gemma3Processor, which sets them for each call.
    assert read(tmp_path, {"do_pan_and_scan": True, "pan_and_scan_max_num_crops": 2, "image_mean": None}) == form
    assert isinstance(wanted.with_switches({"do_pan_and_scan": False}).sizing_of("auto"), Tiling)
    assert wanted.with_switches({"do_pan_and_scan": None}) == wanted


@pytest.mark.parametrize(
    ("switches", "words"),
    [
        ({"do_pan": True}, 'has the name "do_pan", .*; it has do_pan_and_scan, pan_and_scan_min_crop_size'),
        ({"do_pan_and_scan": 1}, "do_pan_and_scan is 1; it must be true or false"),
        ({"pan_and_scan_max_num_crops": 17}, "max_num_crops is 17; it must be an integer from 1 to 16"),
        ({"pan_and_scan_max_num_crops": True}, "max_num_crops is true; it must be an integer"),
        ({"pan_and_scan_min_crop_size": 0}, "min_crop_size is 0; it must be an integer from 1"),
        ({"pan_and_scan_min_ratio_to_activate": "a"}, "must be a number of at least 0"),
    ],
)
def test_wrong_switches_are_refused_by_name(tmp_path: Path, switches: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"mm_processor_kwargs.*{words}"):
        read(tmp_path).with_switches(switches)


@pytest.mark.parametrize(
    "changes", [{"size": {"height": 16, "width": 8}}, {"do_resize": False}, {"image_std": [0, 1, 1]}]
)
def test_other_settings_are_refused_by_name(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=next(iter(changes))):
        read(tmp_path, changes)
