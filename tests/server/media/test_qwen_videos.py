"""Qwen's videos against transformers' own processors."""

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

from engine.interface.types import PictureInput
from server.media.decode_worker import DecodeJob, decode
from server.media.families.picture_formats import read_picture_format
from server.media.families.qwen_pictures import QwenPictures
from server.media.picture_decoder import DecodedTiles
from server.media.video import Video
from tests.golden.pictures.tiny_pictures import waves

GOLDEN: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "golden" / "pictures" / "qwen_videos.json").read_text(encoding="utf-8")
)
VIDEO_SIZES = {"qwen3_vl": (4 * 64, 60 * 64), "qwen2_5_vl": (4 * 64, 12 * 64)}


def read(folder: Path, kind: str, *, most: int = 64, rate: int = 4, **changes: Any) -> QwenPictures:
    vision = {"patch_size": 4, "spatial_merge_size": 2, "tokens_per_second": rate}
    config = {"model_type": kind, "image_token_id": 0, "video_token_id": 1, "vision_config": vision}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    least, largest = VIDEO_SIZES[kind]
    processor = {"size": {"shortest_edge": least, "longest_edge": largest}, **changes}
    (folder / "video_preprocessor_config.json").write_text(json.dumps(processor), encoding="utf-8")
    made = read_picture_format(folder, PictureInput(0, 0, 4, most, 64, num_frames=2), ("!", "#").__getitem__)
    assert isinstance(made, QwenPictures)
    return made


def video(num_frames: int, **changes: Any) -> Video:
    return Video("messages[0].content[0]", "video", "", frames=("data:",) * num_frames, **changes)


def frames(form: QwenPictures, width: int, height: int, number: int) -> list[DecodedTiles]:
    made = []
    for at in range(number):
        file = io.BytesIO()
        Image.fromarray(waves(width, height) + np.uint8(9 * at)).save(file, "PNG")
        tiles = decode(file.getvalue(), DecodeJob(False, form.frame_sizing(number), 5.0))
        pixels = [np.asarray(each) for each in tiles.pictures]
        made.append(DecodedTiles(pixels, tiles.num_rows, tiles.num_columns))
    return made


@pytest.mark.parametrize("entry", GOLDEN, ids=lambda entry: f"{entry['kind']} {entry['size']} {entry['frames']}")
def test_frames_are_those_of_transformers(entry: dict[str, Any], tmp_path: Path) -> None:
    form = read(tmp_path, entry["kind"])
    given = video(entry["frames"], frames_a_second=3.0)
    made = form.decoded_video(frames(form, *entry["size"], entry["frames"]), given)
    moments, rows, columns = entry["grid"]
    assert [tile.grid for tile in made.tiles] == [(rows, columns)] * moments
    if "text" in entry:
        assert made.text == entry["text"]
    else:
        assert made.text == "#" * (moments * rows * columns)
    if "patches" in entry:  # torchvision rounds a little otherwise than Pillow
        expected = np.frombuffer(zlib.decompress(base64.b64decode(entry["patches"])), np.uint8)
        found = np.concatenate([tile.pixels for tile in made.tiles])
        assert np.abs(found.astype(int) - expected.reshape(found.shape)).max() <= 1


def test_moments_of_the_early_model_are_apart_by_their_time(tmp_path: Path) -> None:
    form = read(tmp_path, "qwen2_5_vl")
    of_six = frames(form, 30, 20, 6)
    assert [tile.time for tile in form.decoded_video(of_six, video(6, frames_a_second=3.0)).tiles] == [None, 2, 5]
    assert [tile.time for tile in form.decoded_video(of_six, video(6)).tiles] == [None, 4, 8]  # 2 frames a second
    times = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)
    assert [tile.time for tile in form.decoded_video(of_six, video(6, times=times)).tiles] == [None, 8, 16]
    assert form.with_switches({"fps": 1}).decoded_video(of_six, video(6)).tiles[1].time == 8
    fine = read(tmp_path, "qwen2_5_vl", rate=1000).with_switches({"fps": 1e-6}).decoded_video(of_six, video(6))
    assert fine.tiles[-1].time == 1 << 30  # positions are int32


def test_times_stand_before_the_moments_of_the_later_models(tmp_path: Path) -> None:
    form = read(tmp_path, "qwen3_vl")
    given = video(3, times=(0.25, 0.75, 12.0))
    text = form.decoded_video(frames(form, 16, 16, 3), given).text
    assert [part.partition(">")[0] for part in text.split("<") if "seconds" in part] == ["0.5 seconds", "12.0 seconds"]


def test_a_video_leaves_positions_to_the_text(tmp_path: Path) -> None:
    for kind in VIDEO_SIZES:
        form = read(tmp_path, kind, most=16)  # of four positions each
        made = form.decoded_video(frames(form, 300, 300, 8), video(8))
        assert len(made.tiles) == 4
        assert sum(map(form.num_blocks, made.tiles)) <= 12


def test_a_vocabulary_without_a_token_of_videos_has_none(tmp_path: Path) -> None:
    read(tmp_path, "qwen3_vl")
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    for video_token in (None, 0):  # as GGUF files have it: that of pictures
        (tmp_path / "config.json").write_text(json.dumps({**config, "video_token_id": video_token}), encoding="utf-8")
        form = read_picture_format(tmp_path, PictureInput(0, 0, 4, 64, 64, num_frames=2), ("!", "#").__getitem__)
        assert not form.takes_videos
        assert form.marker_pattern.findall("<|vision_start|>!<|vision_end|>") == ["!"]
        assert form.token_ids == {0}


def test_frames_of_different_shapes_are_refused(tmp_path: Path) -> None:
    form = read(tmp_path, "qwen3_vl")
    mixed = [*frames(form, 30, 20, 2), *frames(form, 20, 30, 2)]
    with pytest.raises(ValueError, match="frames of different shapes: the first one and that with the index 2"):
        form.decoded_video(mixed, video(4))


def test_videos_of_other_colours_than_pictures_are_not_taken(tmp_path: Path) -> None:
    """The encoder takes one kind, that of pictures."""
    colours = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(colours), encoding="utf-8")
    assert read(tmp_path, "qwen3_vl").takes_videos  # those of videos are not stated
    (tmp_path / "preprocessor_config.json").write_text("{}", encoding="utf-8")
    assert read(tmp_path, "qwen3_vl", image_mean=[0.4, 0.5, 0.5]).takes_videos
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(colours), encoding="utf-8")
    assert not read(tmp_path, "qwen3_vl", **{**colours, "image_mean": [0.4, 0.5, 0.5]}).takes_videos
    assert read(tmp_path, "qwen3_vl", **colours).takes_videos
