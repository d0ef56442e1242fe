"""SmolVLM's tiles and the text of pictures, against transformers' own processor."""

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
from server.media.tiling import Tiling
from tests.golden.pictures.tiny_pictures import waves

GOLDEN: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "golden" / "pictures" / "smolvlm_tiles.json").read_text(encoding="utf-8")
)
TOKENS = ("<image>",)
PROCESSOR = {"size": {"longest_edge": 48}, "max_image_size": {"longest_edge": 16}, "resample": 1}


def read(folder: Path, processor: dict[str, Any] | None, name: str = "preprocessor_config.json") -> PictureFormat:
    config = {"model_type": "smolvlm", "image_token_id": 0}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if processor is not None:
        (folder / name).write_text(json.dumps(processor), encoding="utf-8")
    return read_picture_format(folder, PictureInput(16, 16, 1, 32, 1), TOKENS.__getitem__)


def png(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(waves(width, height)).save(file, "PNG")
    return file.getvalue()


def test_tiles_and_texts_are_those_of_transformers(tmp_path: Path) -> None:
    for entry in GOLDEN:
        form = read(tmp_path, {**PROCESSOR, "do_image_splitting": entry["is_cut"]})
        tiles = decode(png(*entry["size"]), DecodeJob(False, form.sizing_of("auto"), 5.0))
        assert tiles[1:] == (entry["rows"], entry["columns"]), entry["size"]
        pixels = np.stack([np.asarray(picture) for picture in tiles.pictures])
        expected = np.frombuffer(zlib.decompress(base64.b64decode(entry["pixels"])), np.uint8).reshape(pixels.shape)
        np.testing.assert_array_equal(pixels, expected)
        assert form.text(*tiles[1:]) == entry["text"]


def test_a_picture_of_low_detail_is_one_tile(tmp_path: Path) -> None:
    form = read(tmp_path, PROCESSOR)
    tiles = decode(png(97, 33), DecodeJob(False, form.sizing_of("low"), 5.0))
    assert [picture.size for picture in tiles.pictures] == [(16, 16)]
    assert form.text(*tiles[1:]) == "<fake_token_around_image><global-img><image><fake_token_around_image>"


def test_settings_of_processors_as_before_and_since_transformers_5(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    assert read(tmp_path, PROCESSOR) == read(tmp_path / "new", {"image_processor": PROCESSOR}, "processor_config.json")
    (tmp_path / "none").mkdir()
    assert read(tmp_path / "none", None).sizing == Tiling(16, 16, 1, 64)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_image_size": {"longest_edge": 32}}, "max_image_size .* the encoder takes pictures of 16 pixels a side"),
        ({"size": {"longest_edge": 512}}, "size .* at most 16 tiles"),
        ({"size": {"height": 16, "width": 16}}, "lacks longest_edge"),
        ({"do_resize": False}, "do_resize"),
        ({"image_std": [1, 1]}, "image_std"),
    ],
)
def test_other_settings_are_refused_by_name(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        read(tmp_path, {**PROCESSOR, **changes})


def test_a_vocabulary_without_the_token_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "idefics3"}', encoding="utf-8")
    with pytest.raises(ModelError, match="tokens of pictures that the vocabulary does not have"):
        read_picture_format(tmp_path, PictureInput(16, 16, 1, 32, 1), TOKENS.__getitem__)
