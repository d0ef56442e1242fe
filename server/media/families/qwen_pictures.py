"""How Qwen's models take pictures, in about their own size. Source: transformers' Qwen2VLImageProcessor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from engine.interface.types import CLIP_MEAN, CLIP_STD, PictureInput
from engine.weights.formats.model_folder import JsonFile, ModelFolder
from server.media.picture_format import (
    HALVES,
    SWITCHES,
    PatchPictures,
    read_filter,
    read_processor,
    switch_integer,
    switch_table,
)
from server.media.tiling import NativeSize

_BICUBIC = 3  # Pillow's number of the filter
_EARLY = "qwen2_5_vl"
_EARLY_PATCH_SIZE, _PATCH_SIZE, _MERGE_SIZE = 14, 16, 2  # where config.json says nothing
_LEAST_TOKENS, _MOST_TOKENS = 4, 16_384  # where preprocessor_config.json says nothing
_MOST = 1 << 30


@dataclass(frozen=True)
class QwenPictures(PatchPictures):
    """A picture of about its own size."""

    pixels_limit: int = _MOST  # of a picture, whatever its processor's settings are

    switch_names = ("min_pixels", "max_pixels", "size")

    @property
    def max_tokens(self) -> int:
        """As `PictureFormat.max_tokens`."""
        size = self.sizing
        return max(1, size.max_pixels // size.factor**2) if isinstance(size, NativeSize) else self.num_tokens

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
        return replace(self, sizing=size._replace(min_pixels=least_pixels, max_pixels=most_pixels))


def read_qwen_pictures(folder: ModelFolder, pictures: PictureInput, token_text: Callable[[int], str]) -> QwenPictures:
    """As `read_picture_format`; raises IndexError where the vocabulary lacks a token."""
    is_early = folder.config.text("model_type") == _EARLY
    processor = read_processor(folder, *((CLIP_MEAN, CLIP_STD) if is_early else (HALVES, HALVES)))
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
    name = token_text(token_id)
    return QwenPictures(
        size, pictures.num_tokens, pictures.most, marker=name, token=name, token_id=token_id,
        patch_size=patch, merge_size=merge, pixels_limit=limit,
    )  # fmt: skip


def _read_pixels(processor: JsonFile, name: str, name_in_size: str, default: int) -> int:
    """A limit by its own name, or by that in the table of sizes."""
    size = processor.table("size")
    stated = processor.integer(name, least=1, most=_MOST)
    if stated is None and size is not None:
        stated = size.integer(name_in_size, least=1, most=_MOST)
    return default if stated is None else stated
