"""How LFM2-VL takes pictures: in their own size, behind tiles of large ones. Source: transformers' Lfm2VlProcessor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from engine.interface.types import PictureInput
from engine.weights.formats.model_folder import JsonFile, ModelFolder
from server.media.decoded_picture import DecodedPicture, PictureTile
from server.media.picture_decoder import DecodedTiles
from server.media.picture_format import (
    LOW,
    SWITCHES,
    PatchPictures,
    read_filter,
    read_processor,
    switch_flag,
    switch_integer,
)
from server.media.tiling import Sizing, ThumbnailGrid

_BILINEAR = 2  # Pillow's number of the filter
_IMAGE_TOKEN, _PATCH_SIZE, _MERGE_SIZE = 396, 16, 2  # where config.json says nothing; source: transformers
_MOST_TILES = 64
# Where the processor says nothing; source: transformers' Lfm2VlImageProcessor.
_MIN_TOKENS, _MAX_TOKENS, _TILE_SIZE, _MIN_TILES, _MAX_TILES, _TOLERANCE = 64, 256, 512, 2, 10, 2.0
_MOST = 1 << 16


@dataclass(frozen=True)
class Lfm2Pictures(PatchPictures):
    """A small picture alone, and a large one behind its tiles, each of which has its place before it."""

    thumbnail: str = "<|img_thumbnail|>"
    is_cut: bool = True
    tiles_limit: int = _MOST_TILES  # of a picture, whatever its processor's settings are
    tokens_limit: int = _MOST

    switch_names = (
        "do_image_splitting", "use_thumbnail", "min_tiles", "max_tiles", "min_image_tokens", "max_image_tokens",
    )  # fmt: skip

    @property
    def max_tokens(self) -> int:
        """As `PictureFormat.max_tokens`."""
        size = self.sizing_of("")
        if not isinstance(size, ThumbnailGrid):
            return self.num_tokens
        of_tiles = 0 if size.max_tiles == 1 else size.max_tiles * (size.tile_size // size.factor) ** 2
        return of_tiles + size.max_tokens

    def sizing_of(self, detail: str) -> Sizing:
        """As `PictureFormat.sizing_of`; a picture of low detail is not cut."""
        size = self.sizing
        if not isinstance(size, ThumbnailGrid) or (self.is_cut and detail != LOW):
            return size
        return size._replace(min_tiles=1, max_tiles=1)

    def switched(self, switches: Mapping[str, Any]) -> Self:
        """As `PictureFormat.switched`."""
        size = self.sizing
        if not isinstance(size, ThumbnailGrid):
            return self
        ranges: dict[str, tuple[int, int]] = {}
        for kind, limit in (("tiles", self.tiles_limit), ("image_tokens", self.tokens_limit)):
            is_tiles = kind == "tiles"
            own = (size.min_tiles, size.max_tiles) if is_tiles else (size.min_tokens, size.max_tokens)
            least, most = (
                switch_integer(switches, f"{end}_{kind}", least=1, most=limit, default=default)
                for end, default in zip(("min", "max"), own, strict=True)
            )
            if least > most:
                raise ValueError(f"{SWITCHES}.min_{kind} is {least}; it must not be above max_{kind} ({most})")
            ranges[kind] = least, most
        (min_tiles, max_tiles), (min_tokens, max_tokens) = ranges["tiles"], ranges["image_tokens"]
        sizing = size._replace(
            min_tiles=min_tiles, max_tiles=max_tiles, min_tokens=min_tokens, max_tokens=max_tokens,
            has_thumbnail=switch_flag(switches, "use_thumbnail", default=size.has_thumbnail),
        )  # fmt: skip
        is_cut = switch_flag(switches, "do_image_splitting", default=self.is_cut)
        return replace(self, sizing=sizing, is_cut=is_cut)

    def decoded(self, tiles: DecodedTiles) -> DecodedPicture:
        """As `PictureFormat.decoded`, with the sizes of all tiles in the text."""
        rows, columns = tiles.num_rows, tiles.num_columns
        names = [f"<|img_row_{row}_col_{column}|>" for row in range(1, rows + 1) for column in range(1, columns + 1)]
        names.append(self.thumbnail if names else "")
        made = [self._tile(pixels) for pixels in tiles.pixels]
        texts = [name + self.token * tile.num_tokens for name, tile in zip(names, made, strict=False)]
        return DecodedPicture(tuple(made), self.before + "".join(texts) + self.behind)

    def _tile(self, pixels: np.ndarray) -> PictureTile:
        factor = self.patch_size * self.merge_size
        rows, columns = pixels.shape[0] // factor, pixels.shape[1] // factor
        (tile,) = super().decoded(DecodedTiles([pixels], rows, columns)).tiles
        return tile


def read_lfm2_pictures(folder: ModelFolder, pictures: PictureInput, token_text: Callable[[int], str]) -> Lfm2Pictures:
    """As `read_picture_format`; raises IndexError where the vocabulary lacks a token."""
    processor, config = read_processor(folder), folder.config
    vision = config.table("vision_config") or JsonFile(config.path, {})
    patch = vision.integer("patch_size", least=1, most=_MOST) or _PATCH_SIZE
    merge = config.integer("downsample_factor", least=1, most=_MOST) or _MERGE_SIZE
    for name, expected in (("encoder_patch_size", patch), ("downsample_factor", merge)):
        if processor.value(name) not in (None, expected):
            raise processor.error(name, f"it must be that of config.json, {expected}")
    if processor.flag("do_resize") is False:
        raise processor.error("do_resize", "of this architecture it must be true")
    factor = patch * merge
    edge = processor.integer("tile_size", least=1, most=_MOST) or _TILE_SIZE
    if edge % factor:
        raise processor.error("tile_size", f"it must be a multiple of {factor}, the pixels on a side of a token")
    min_tiles, max_tiles = _read_range(processor, "tiles", _MIN_TILES, _MAX_TILES, most=_MOST_TILES)
    min_tokens, max_tokens = _read_range(processor, "image_tokens", _MIN_TOKENS, _MAX_TOKENS, most=_MOST)
    max_tokens = min(max_tokens, pictures.max_tokens)
    size_of_tile = (edge // factor) ** 2
    limit = 1 if size_of_tile > pictures.max_tokens else pictures.most // -(-size_of_tile // pictures.num_tokens)
    limit = max(1, min(_MOST_TILES, limit - -(-max_tokens // pictures.num_tokens)))
    max_tiles = min(max_tiles, limit)
    sizing = ThumbnailGrid(
        factor, patch, min(min_tokens, max_tokens), max_tokens, read_filter(processor, _BILINEAR), edge,
        min(min_tiles, max_tiles), max_tiles, processor.positive_number("max_pixels_tolerance") or _TOLERANCE,
        processor.flag("use_thumbnail") is not False,
    )  # fmt: skip
    token_id = config.integer("image_token_id", least=0)
    token_id = _IMAGE_TOKEN if token_id is None else token_id
    name = token_text(token_id)
    return Lfm2Pictures(
        sizing, pictures.num_tokens, pictures.most, marker=name, token=name, token_id=token_id,
        before="<|image_start|>", behind="<|image_end|>", patch_size=patch, merge_size=merge,
        is_cut=processor.flag("do_image_splitting") is not False, tiles_limit=limit,
        tokens_limit=pictures.max_tokens,
    )  # fmt: skip


def _read_range(processor: JsonFile, name: str, default_least: int, default_most: int, *, most: int) -> tuple[int, int]:
    """The least and the most of something; raises ModelError."""
    largest = processor.integer(f"max_{name}", least=1, most=most)
    smallest = processor.integer(f"min_{name}", least=1, most=most)
    if largest is None:
        largest = max(default_most, smallest or 1)
    if smallest is None:
        smallest = min(default_least, largest)
    if smallest > largest:
        raise processor.error(f"min_{name}", f"it must not be above max_{name} ({largest})")
    return smallest, largest
