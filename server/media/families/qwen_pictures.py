"""How Qwen's models take pictures, in about their own size. Source: transformers' Qwen2VLImageProcessor."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Self

import numpy as np

from engine.interface.types import PictureInput
from engine.weights.formats.image_processor import PROCESSORS_FILE, stated_colours
from engine.weights.formats.model_folder import JsonFile, ModelFolder
from server.media.decoded_picture import DecodedPicture, PictureTile
from server.media.picture import Picture
from server.media.picture_decoder import DecodedTiles
from server.media.picture_format import (
    SWITCHES,
    PatchPictures,
    read_filter,
    read_processor,
    switch_integer,
    switch_table,
)
from server.media.tiling import FrameSize, NativeSize, Sizing
from server.media.video import MAX_FRAMES_A_SECOND, MIN_FRAMES_A_SECOND, Video
from server.protocol.errors import shorten

_BICUBIC = 3  # Pillow's number of the filter
_EARLY = "qwen2_5_vl"
_EARLY_PATCH_SIZE, _PATCH_SIZE, _MERGE_SIZE = 14, 16, 2  # where config.json says nothing
_LEAST_TOKENS, _MOST_TOKENS = 4, 16_384  # where preprocessor_config.json says nothing
_MOST = 1 << 30
_RATE = "fps"  # in `mm_processor_kwargs`
_FRAMES_A_SECOND = 2.0  # of a video that does not say it; source: Qwen's processors sample so many
_TOKENS_A_SECOND, _MOST_RATE = 4, 1000  # likewise of `tokens_per_second`; source: transformers' Qwen2_5_VLVisionConfig
_VIDEO_PIXELS = (1 << 12, 24 << 20)  # of a whole video; source: the video_preprocessor_config.json of Qwen3-VL
_MOST_TIME = 1 << 30  # rotary positions, which are int32
_VIDEO_SHARE = 0.75  # of a prompt's positions
_VIDEO_FILE = "video_preprocessor_config.json"
_START, _END = "<|vision_start|>", "<|vision_end|>"


@dataclass(frozen=True)
class QwenPictures(PatchPictures):
    """A picture of about its own size, and videos of such, of which some frames become one picture."""

    pixels_limit: int = _MOST  # of a picture, whatever its processor's settings are
    video_token: str = ""  # empty: the vocabulary has none
    video_token_id: int = -1
    frames_a_patch: int = 2
    frames_a_second: float = _FRAMES_A_SECOND  # of a video that does not say it
    video_pixels: tuple[int, int] = (1, _MOST)  # the least and the most of a frame, or of a video with marked times
    # Positions a second, by which moments are apart; 0: the seconds are written before each moment instead.
    tokens_a_second: int = 0

    switch_names = ("min_pixels", "max_pixels", "size", _RATE)

    @property
    def max_tokens(self) -> int:
        """As `PictureFormat.max_tokens`."""
        size = self.sizing
        return max(1, size.max_pixels // size.factor**2) if isinstance(size, NativeSize) else self.num_tokens

    @property
    def takes_videos(self) -> bool:
        """As `PictureFormat.takes_videos`."""
        return bool(self.video_token)

    @property
    def token_ids(self) -> Set[int]:
        """As `PictureFormat.token_ids`."""
        return {self.token_id, self.video_token_id} if self.video_token else {self.token_id}

    @property
    def marker_pattern(self) -> re.Pattern[str]:
        """As `PictureFormat.marker_pattern`."""
        markers = [self.marker, *([self._video_marker] if self.video_token else [])]
        return re.compile("|".join(map(re.escape, markers)))

    def marker_of(self, picture: Picture) -> str:
        """As `PictureFormat.marker_of`."""
        return self._video_marker if isinstance(picture, Video) else self.marker

    @property
    def _video_marker(self) -> str:
        return self.video_token if self.tokens_a_second else f"{_START}{self.video_token}{_END}"

    def frame_sizing(self, num_frames: int) -> Sizing:
        """As `PictureFormat.frame_sizing`; a video leaves some of the positions of a prompt to its text."""
        factor, (least, most) = self.patch_size * self.merge_size, self.video_pixels
        num_moments = -(-num_frames // self.frames_a_patch)
        share = max(1, _VIDEO_SHARE * self.most // num_moments) * self.num_tokens * factor**2
        share, resample = int(min(share, self.pixels_limit)), self.sizing.resample
        if self.tokens_a_second:
            return NativeSize(factor, min(least, share), min(most, share), resample)
        return FrameSize(factor, least, most, resample, num_frames, self.frames_a_patch, share)

    def decoded_video(self, frames: Sequence[DecodedTiles], video: Video) -> DecodedPicture:
        """As `PictureFormat.decoded_video`."""
        rows, columns = frames[0].num_rows, frames[0].num_columns
        for at, frame in enumerate(frames):
            if (frame.num_rows, frame.num_columns) != (rows, columns):
                raise ValueError(f"has frames of different shapes: the first one and that with the index {at}")
        patches, width = [self.patches(frame) for frame in frames], self.frames_a_patch
        num_missing = -len(frames) % width  # the last frame stands for them
        patches += patches[-1:] * num_missing
        seconds = video.seconds(self.frames_a_second)
        seconds += seconds[-1:] * num_missing
        interval = np.float32(width / video.rate(self.frames_a_second)) * np.float32(self.tokens_a_second)
        tiles, texts = [], []
        for moment, first in enumerate(range(0, len(patches), width)):
            pixels = np.stack(patches[first : first + width], axis=1)
            digest = sha256(pixels.data)
            digest.update(f"{rows} × {columns} in frames".encode())
            time = min(int(np.float32(moment) * interval), _MOST_TIME) if moment and self.tokens_a_second else None
            tiles.append(PictureTile(pixels, digest.digest(), rows * columns, (rows, columns), time))
            text = self.video_token * (rows * columns)
            if not self.tokens_a_second:
                middle = (seconds[first] + seconds[first + width - 1]) / 2
                text = f"<{middle:.1f} seconds>{_START}{text}{_END}"
            texts.append(text)
        return DecodedPicture(tuple(tiles), "".join(texts))

    def switched(self, switches: Mapping[str, Any]) -> Self:
        """As `PictureFormat.switched`."""
        size, most = self.sizing, self.pixels_limit
        if not isinstance(size, NativeSize):
            return self
        edges = switch_table(switches, "size", ("shortest_edge", "longest_edge"))
        least_pixels = switch_integer(edges, "size.shortest_edge", least=1, most=most, default=size.min_pixels)
        most_pixels = switch_integer(edges, "size.longest_edge", least=1, most=most, default=size.max_pixels)
        least_pixels = switch_integer(switches, "min_pixels", least=1, most=most, default=least_pixels)
        most_pixels = switch_integer(switches, "max_pixels", least=1, most=most, default=most_pixels)
        if least_pixels > most_pixels:
            raise ValueError(
                f"{SWITCHES} lets pictures have from {least_pixels} (min_pixels) to {most_pixels} (max_pixels) pixels; "
                "the first must not be above the second"
            )
        rate = switches.get(_RATE, self.frames_a_second)
        is_number = isinstance(rate, int | float) and not isinstance(rate, bool)
        if not is_number or not MIN_FRAMES_A_SECOND <= rate <= MAX_FRAMES_A_SECOND:
            raise ValueError(
                f"{SWITCHES}.{_RATE} is {shorten(rate)}; it must be a number from {MIN_FRAMES_A_SECOND:g} to "
                f"{MAX_FRAMES_A_SECOND:g}"
            )
        sizing = size._replace(min_pixels=least_pixels, max_pixels=most_pixels)
        return replace(self, sizing=sizing, frames_a_second=float(rate))


def read_qwen_pictures(folder: ModelFolder, pictures: PictureInput, token_text: Callable[[int], str]) -> QwenPictures:
    """As `read_picture_format`; raises IndexError where the vocabulary lacks a token."""
    is_early = folder.config.text("model_type") == _EARLY
    processor = read_processor(folder)
    vision = folder.config.table("vision_config") or JsonFile(folder.config.path, {})
    patch = vision.integer("patch_size", least=1) or (_EARLY_PATCH_SIZE if is_early else _PATCH_SIZE)
    merge = vision.integer("spatial_merge_size", least=1) or _MERGE_SIZE
    for name, expected in (("patch_size", patch), ("merge_size", merge)):
        if processor.value(name) not in (None, expected):
            raise processor.error(name, f"it must be that of config.json, {expected}")
    if processor.flag("do_resize") is False:
        raise processor.error("do_resize", "of this architecture it must be true")
    factor = patch * merge
    limit = pictures.max_tokens * factor**2
    least = min(_read_pixels(processor, "min_pixels", "shortest_edge", _LEAST_TOKENS * factor**2), limit)
    most = min(_read_pixels(processor, "max_pixels", "longest_edge", _MOST_TOKENS * factor**2), limit)
    size = NativeSize(factor, least, most, read_filter(processor, _BICUBIC))
    token_id = folder.config.required_integer("image_token_id", least=0)
    video_id = folder.config.integer("video_token_id", least=0)
    name = token_text(token_id)
    video = folder.json(_VIDEO_FILE)
    if video is None:
        processors = folder.json(PROCESSORS_FILE)
        video = None if processors is None else processors.table("video_processor")
    if video is None:
        video = processor if is_early else JsonFile(folder.path / _VIDEO_FILE, {})
    defaults = (_LEAST_TOKENS * factor**2, _MOST_TOKENS * factor**2) if is_early else _VIDEO_PIXELS
    names = (("min_pixels", "shortest_edge"), ("max_pixels", "longest_edge"))
    video_pixels = [_read_pixels(video, *each, default) for each, default in zip(names, defaults, strict=True)]
    colours, of_videos = stated_colours(processor), stated_colours(video)
    has_own_colours = bool(colours and of_videos) and of_videos != colours  # the encoder takes one kind
    rate = vision.integer("tokens_per_second", least=1, most=_MOST_RATE) or _TOKENS_A_SECOND
    return QwenPictures(
        size, pictures.num_tokens, pictures.most, marker=name, token=name, token_id=token_id,
        patch_size=patch, merge_size=merge, pixels_limit=limit,
        video_token="" if video_id in (None, token_id) or has_own_colours else token_text(video_id),
        video_token_id=-1 if video_id is None else video_id, frames_a_patch=max(pictures.num_frames, 1),
        video_pixels=(min(video_pixels), max(video_pixels)), tokens_a_second=rate if is_early else 0,
    )  # fmt: skip


def _read_pixels(processor: JsonFile, name: str, name_in_size: str, default: int) -> int:
    """A limit by its own name, or by that in the table of sizes."""
    size = processor.table("size")
    stated = processor.integer(name, least=1, most=_MOST)
    if stated is None and size is not None:
        stated = size.integer(name_in_size, least=1, most=_MOST)
    return default if stated is None else stated
