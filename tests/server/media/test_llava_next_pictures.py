"""LLaVA-NeXT's maps of tiles against transformers' own processor."""

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
from engine.interface.types import PictureInput, TileMap
from server.media.decode_worker import DecodeJob, decode
from server.media.families.picture_formats import read_picture_format
from server.media.picture_decoder import DecodedTiles
from server.media.picture_format import PictureFormat
from server.media.tiling import MappedGrid
from tests.golden.pictures.tiny_pictures import waves

GOLDEN: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "golden" / "pictures" / "llava_next_tiles.json").read_text(encoding="utf-8")
)
PINPOINTS = [[16, 16], [16, 32], [32, 16], [32, 32], [16, 128], [128, 16], [48, 32]]
PROCESSOR = {"size": {"height": 16, "width": 16}, "crop_size": {"height": 16, "width": 16}}


def read(folder: Path, processor: dict[str, Any], *, most: int = 64, **changes: Any) -> PictureFormat:
    vision = {"model_type": "siglip_vision_model", "image_size": 16, "patch_size": 4}
    config = {
        "model_type": "llava_next", "vision_config": vision, "image_grid_pinpoints": PINPOINTS, "image_token_index": 0,
        **changes,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "preprocessor_config.json").write_text(json.dumps(processor), encoding="utf-8")
    pictures = PictureInput(0, 0, 64, most, 16 + 32 * 5, pixels_shape=(9, 16, 16, 3), is_tiled=True)
    return read_picture_format(folder, pictures, ("<image>",).__getitem__)


def decoded(form: PictureFormat, width: int, height: int, detail: str = "auto") -> DecodedTiles:
    file = io.BytesIO()
    Image.fromarray(waves(width, height)).save(file, "PNG")
    tiles = decode(file.getvalue(), DecodeJob(False, form.sizing_of(detail), 5.0))
    return DecodedTiles([np.asarray(each) for each in tiles.pictures], tiles.num_rows, tiles.num_columns)


@pytest.mark.parametrize("entry", GOLDEN, ids=lambda entry: f"{entry['size']}")
def test_tiles_are_those_of_transformers(entry: dict[str, Any], tmp_path: Path) -> None:
    form = read(tmp_path, PROCESSOR)
    tiles = decoded(form, *entry["size"])
    shown = TileMap.from_grid((tiles.num_rows, tiles.num_columns))
    assert [shown.tile_rows, shown.tile_columns] == entry["tiles"]
    found = np.stack(tiles.pixels)
    expected = np.frombuffer(zlib.decompress(base64.b64decode(entry["pixels"])), np.uint8)
    np.testing.assert_array_equal(found, expected.reshape(found.shape))
    picture = form.decoded(tiles)
    (tile,) = picture.tiles
    assert tile.num_tokens == entry["num_tokens"]
    assert picture.text == "<image>" * tile.num_tokens
    assert tile.grid == shown.grid
    assert tile.num_tokens <= form.max_tokens


def test_the_largest_pictures_are_those_that_fit(tmp_path: Path) -> None:
    form = read(tmp_path, PROCESSOR)
    assert form.max_tokens == 16 + 32 * 5
    smaller = read(tmp_path, PROCESSOR, most=1)  # 64 positions
    assert isinstance(smaller.sizing, MappedGrid)
    assert smaller.sizing.grids == ((1, 1), (1, 2), (2, 1))
    assert smaller.max_tokens == 16 + 8 * 5
    low = form.sizing_of("low")
    assert isinstance(low, MappedGrid)
    assert low.grids == ((1, 1),)


@pytest.mark.parametrize(
    "changes",
    [
        {"size": {"shortest_edge": 32}}, {"crop_size": {"height": 16, "width": 8}},
        {"do_resize": False}, {"image_grid_pinpoints": [[16, 16]]}, {"image_std": [1, 1]},
    ],
)  # fmt: skip
def test_other_settings_are_refused_by_name(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=next(iter(changes))):
        read(tmp_path, {**PROCESSOR, **changes})
