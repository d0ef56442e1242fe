"""Llama 4's tiles against transformers' own processor."""

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
from server.media.families.picture_formats import read_picture_format
from server.media.picture_format import PictureFormat
from tests.golden.pictures.tiny_pictures import waves

GOLDEN: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "golden" / "pictures" / "llama4_tiles.json").read_text(encoding="utf-8")
)


def read(folder: Path, processor: dict[str, Any], *, most: int = 64) -> PictureFormat:
    config = {"model_type": "llama4", "image_token_index": 0}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "preprocessor_config.json").write_text(json.dumps(processor), encoding="utf-8")
    return read_picture_format(folder, PictureInput(16, 16, 4, most, 4), ("<|patch|>",).__getitem__)


@pytest.mark.parametrize("entry", GOLDEN, ids=lambda entry: f"{entry['size']} {entry['changes']}")
def test_tiles_are_those_of_transformers(entry: dict[str, Any], tmp_path: Path) -> None:
    form = read(tmp_path, {"size": {"height": 16, "width": 16}, **entry["changes"]})
    file = io.BytesIO()
    Image.fromarray(waves(*entry["size"])).save(file, "PNG")
    tiles = decode(file.getvalue(), DecodeJob(False, form.sizing_of("auto"), 5.0))
    rows, columns = entry["grid"]
    assert (tiles.num_rows, tiles.num_columns) == ((0, 0) if rows * columns == 1 else (rows, columns))
    assert form.text(tiles.num_rows, tiles.num_columns) == entry["text"]
    found = np.stack([np.asarray(each) for each in tiles.pictures])
    expected = np.frombuffer(zlib.decompress(base64.b64decode(entry["pixels"])), np.uint8).reshape(found.shape)
    # Those of the golden were of bfloat16.
    assert np.abs(found.astype(int) - expected).max() <= 1


def test_settings(tmp_path: Path) -> None:
    form = read(tmp_path, {})
    assert form.max_tokens == 17 * 4
    assert form.with_switches({"max_patches": 1}).max_tokens == 4
    assert form.with_switches({"max_patches": 3}).max_tokens == 16
    assert read(tmp_path, {}, most=5).max_tokens == 20
    assert form.sizing_of("low") == form.with_switches({"max_patches": 1}).sizing_of("auto")
    with pytest.raises(ValueError, match="max_patches"):
        form.with_switches({"max_patches": 65})
    with pytest.raises(ModelError, match="16 pixels a side"):
        read(tmp_path, {"size": {"height": 32, "width": 16}})
