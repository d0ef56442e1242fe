"""How Llama 4 takes pictures, cut into tiles of their own shape. Source: transformers' Llama4Processor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from engine.interface.types import PictureInput
from engine.weights.formats.model_folder import ModelFolder
from server.media.picture_format import (
    LOW,
    PictureFormat,
    read_filter,
    read_processor,
    refuse_other_edges,
    switch_flag,
    switch_integer,
)
from server.media.tiling import PaddedGrid, Sizing

_BILINEAR = 2  # Pillow's number of the filter
_IMAGE_TOKEN = 200_092  # where config.json says nothing; source: transformers' Llama4Config
_MAX_TILES = 16  # likewise; source: transformers' Llama4ImageProcessor
_MOST_TILES = 64


@dataclass(frozen=True)
class Llama4Pictures(PictureFormat):
    """The tiles of a picture with marks between them, and behind them the whole picture."""

    beside: str = "<|tile_x_separator|>"
    below: str = "<|tile_y_separator|>"
    tiles_limit: int = _MOST_TILES  # of a picture, whatever its processor's settings are

    switch_names = ("max_patches", "resize_to_max_canvas")

    def text(self, num_rows: int, num_columns: int) -> str:
        """As `PictureFormat.text`."""
        row = self.beside.join([self.positions] * num_columns) + self.below
        return f"{self.before}{row * num_rows}{self.marker}{self.positions}{self.behind}"

    @property
    def max_tokens(self) -> int:
        """As `PictureFormat.max_tokens`."""
        most = self.sizing.max_tiles if isinstance(self.sizing, PaddedGrid) else 1
        return (most + (most > 1)) * self.num_tokens

    def sizing_of(self, detail: str) -> Sizing:
        """As `PictureFormat.sizing_of`; a picture of low detail is not cut."""
        size = self.sizing
        return size._replace(max_tiles=1) if detail == LOW and isinstance(size, PaddedGrid) else size

    def switched(self, switches: Mapping[str, Any]) -> Self:
        """As `PictureFormat.switched`."""
        size = self.sizing
        if not isinstance(size, PaddedGrid):
            return self
        most = switch_integer(switches, "max_patches", least=1, most=self.tiles_limit, default=size.max_tiles)
        fills = switch_flag(switches, "resize_to_max_canvas", default=size.fills_canvas)
        return replace(self, sizing=size._replace(max_tiles=most, fills_canvas=fills))


def read_llama4_pictures(
    folder: ModelFolder, pictures: PictureInput, token_text: Callable[[int], str]
) -> Llama4Pictures:
    """As `read_picture_format`; raises IndexError where the vocabulary lacks a token."""
    processor = read_processor(folder)
    refuse_other_edges(processor, pictures)
    most = processor.integer("max_patches", least=1, most=_MOST_TILES) or _MAX_TILES
    limit = max(1, min(_MOST_TILES, pictures.most - 1))  # beside the whole picture
    tiles = PaddedGrid(
        pictures.height, pictures.width, read_filter(processor, _BILINEAR), min(most, limit),
        processor.flag("resize_to_max_canvas") is True,
    )  # fmt: skip
    token_id = folder.config.integer("image_token_index", least=0)
    token_id = _IMAGE_TOKEN if token_id is None else token_id
    return Llama4Pictures(
        tiles, pictures.num_tokens, pictures.most, marker="<|image|>", token=token_text(token_id), token_id=token_id,
        before="<|image_start|>", behind="<|image_end|>", tiles_limit=limit,
    )  # fmt: skip
