"""Pictures with ends of rows, against transformers' own processor of Mistral 3."""

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
from engine.interface.types import CLIP_MEAN, CLIP_STD, PictureInput
from server.media.decode_worker import DecodeJob, decode
from server.media.decoded_picture import DecodedPicture
from server.media.families.picture_formats import read_picture_format
from server.media.picture_decoder import DecodedTiles
from server.media.picture_format import PictureFormat
from tests.golden.pictures.tiny_pictures import waves

GOLDEN: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "golden" / "pictures" / "pixtral_sizes.json").read_text(encoding="utf-8")
)
PROCESSOR = {
    "patch_size": {"height": 4, "width": 4}, "size": {"longest_edge": 100},
    "image_mean": list(CLIP_MEAN), "image_std": list(CLIP_STD),
}  # fmt: skip


def read(folder: Path, processor: dict[str, Any], *, max_tokens: int = 4096, **changes: Any) -> PictureFormat:
    config = {"model_type": "mistral3", "image_token_index": 0, "vision_config": {"patch_size": 4}, **changes}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "preprocessor_config.json").write_text(json.dumps(processor), encoding="utf-8")
    return read_picture_format(folder, PictureInput(0, 0, 64, 64, max_tokens), ("[IMG]",).__getitem__)


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
        assert (tile.grid, tile.num_tokens) == ((rows, columns), rows * columns)
        # As PixtralProcessor writes it.
        assert picture.text == ("[IMG]" * columns + "[IMG_BREAK]") * (rows - 1) + "[IMG]" * columns + "[IMG_END]"
        expected = np.frombuffer(zlib.decompress(base64.b64decode(entry["pixels"])), np.uint8)
        expected = expected.reshape(rows, 2, 4, columns, 2, 4, 3).transpose(0, 3, 1, 4, 2, 5, 6)
        np.testing.assert_array_equal(tile.pixels, expected.reshape(tile.pixels.shape))


@pytest.mark.parametrize("size", [(300, 1), (1, 300), (1, 1), (400, 390)])
def test_no_picture_fills_more_than_the_most_tokens(tmp_path: Path, size: tuple[int, int]) -> None:
    """Those that transformers' processor would leave without a row have one."""
    for max_tokens in (1, 5, 40):
        form = read(tmp_path, PROCESSOR, max_tokens=max_tokens)
        assert 1 <= decoded(form, *size).tiles[0].num_tokens <= form.max_tokens <= max_tokens


def test_the_longest_edge_of_a_request(tmp_path: Path) -> None:
    form = read(tmp_path, PROCESSOR)
    assert form.max_tokens == 13 * 13
    assert decoded(form.with_switches({"size": {"longest_edge": 16}}), 48, 48).tiles[0].grid == (2, 2)


@pytest.mark.parametrize(
    ("switches", "words"),
    [
        ({"size": {"longest_edge": 0}}, "size.longest_edge is 0; it must be an integer from 1 to 512"),
        ({"size": {"longest_edge": 1 << 31}}, "size.longest_edge is 2147483648; it must be"),
        ({"size": {"longest_edge": 9.5}}, "size.longest_edge is 9.5; it must be"),
        ({"size": {"height": 9}}, "size is .*; it must be an object with longest_edge"),
        ({"patch_size": 8}, 'has the name "patch_size", .*; it has size'),
    ],
)
def test_wrong_switches_are_refused_by_name(tmp_path: Path, switches: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"mm_processor_kwargs.*{words}"):
        read(tmp_path, PROCESSOR).with_switches(switches)


@pytest.mark.parametrize(
    "changes",
    [
        {"patch_size": 5},
        {"patch_size": 0},
        {"spatial_merge_size": 3},
        {"size": {"longest_edge": 0}},
        {"size": {"height": 9, "width": 9}},
        {"do_resize": False},
        {"image_mean": [1, 1]},
    ],
)
def test_other_settings_are_refused_by_name(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=next(iter(changes)) + "|longest_edge"):
        read(tmp_path, {**PROCESSOR, **changes})


def test_the_sizes_of_texts_hold(tmp_path: Path) -> None:
    """Those of the image processor are left at their defaults where another file states them."""
    processor = {**PROCESSOR, "patch_size": {"height": 16, "width": 16}}
    with pytest.raises(ModelError, match="patch_size"):
        read(tmp_path, processor)
    (tmp_path / "processor_config.json").write_text('{"patch_size": 4, "spatial_merge_size": 2}', encoding="utf-8")
    assert read(tmp_path, processor).max_tokens == read(tmp_path, PROCESSOR).max_tokens


@pytest.mark.parametrize("size", [(1, 1), (1, 30), (30, 1)])
def test_a_token_for_each_patch(size: tuple[int, int], tmp_path: Path) -> None:
    """Where squares are of one patch, those of a picture of one row or one column would be its pixels as they lie."""
    (tile,) = decoded(read(tmp_path, PROCESSOR, spatial_merge_size=1), *size).tiles
    assert tile.num_tokens == -(-size[0] // 4) * -(-size[1] // 4)
    assert tile.pixels.flags.c_contiguous
