"""How InternVL takes pictures, cut into tiles. Source: transformers' InternVLProcessor and GotOcr2ImageProcessor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from engine.interface.types import PictureInput
from engine.weights.formats.model_folder import JsonFile, ModelFolder
from server.media.picture_format import (
    LOW,
    SWITCHES,
    PictureFormat,
    read_filter,
    read_processor,
    refuse_other_edges,
    switch_flag,
    switch_integer,
)
from server.media.tiling import Sizing, TileGrid

_BICUBIC = 3  # Pillow's number of the filter
_IMAGE_TOKEN = 151_667  # where config.json says nothing; source: transformers' InternVLConfig
_MIN_TILES, _MAX_TILES = 1, 12  # likewise; source: transformers' GotOcr2ImageProcessor
_MOST_TILES = 64
_TOKENIZER_FILE = "tokenizer_config.json"


@dataclass(frozen=True)
class InternVLPictures(PictureFormat):
    """The tiles of a picture, and behind them the whole picture."""

    is_cut: bool = True
    tiles_limit: int = _MOST_TILES  # of a picture, whatever its processor's settings are

    switch_names = ("crop_to_patches", "min_patches", "max_patches")

    def text(self, num_rows: int, num_columns: int) -> str:
        """As `PictureFormat.text`."""
        num_tiles = num_rows * num_columns
        return self.before + self.positions * (num_tiles + 1) + self.behind

    @property
    def max_tokens(self) -> int:
        """As `PictureFormat.max_tokens`."""
        size = self.sizing_of("")
        most = size.max_tiles if isinstance(size, TileGrid) else 1
        return (most + (most > 1)) * self.num_tokens

    def sizing_of(self, detail: str) -> Sizing:
        """As `PictureFormat.sizing_of`; a picture of low detail is not cut."""
        size = self.sizing
        if not isinstance(size, TileGrid) or (self.is_cut and detail != LOW):
            return size
        return size._replace(min_tiles=1, max_tiles=1)

    def switched(self, switches: Mapping[str, Any]) -> Self:
        """As `PictureFormat.switched`."""
        size, most = self.sizing, self.tiles_limit
        if not isinstance(size, TileGrid):
            return self
        least_tiles = switch_integer(switches, "min_patches", least=1, most=most, default=size.min_tiles)
        most_tiles = switch_integer(switches, "max_patches", least=1, most=most, default=size.max_tiles)
        if least_tiles > most_tiles:
            raise ValueError(
                f"{SWITCHES} lets pictures have from {least_tiles} (min_patches) to {most_tiles} (max_patches) tiles; "
                "the first must not be above the second"
            )
        is_cut = switch_flag(switches, "crop_to_patches", default=self.is_cut)
        return replace(self, sizing=size._replace(min_tiles=least_tiles, max_tiles=most_tiles), is_cut=is_cut)


def read_internvl_pictures(
    folder: ModelFolder, pictures: PictureInput, token_text: Callable[[int], str]
) -> InternVLPictures:
    """As `read_picture_format`; raises IndexError where the vocabulary lacks a token."""
    processor = read_processor(folder)
    texts = folder.json(_TOKENIZER_FILE) or JsonFile(folder.path / _TOKENIZER_FILE, {})
    refuse_other_edges(processor, pictures)
    least = processor.integer("min_patches", least=1, most=_MOST_TILES) or _MIN_TILES
    most = processor.integer("max_patches", least=1, most=_MOST_TILES) or max(least, _MAX_TILES)
    if least > most:
        raise processor.error("min_patches", f"it must not be above max_patches ({most})")
    limit = max(1, min(_MOST_TILES, pictures.most - 1))  # beside the whole picture
    tiles = TileGrid(
        pictures.height, pictures.width, read_filter(processor, _BICUBIC), min(least, limit), min(most, limit)
    )
    token_id = folder.config.integer("image_token_id", least=0)
    token_id = _IMAGE_TOKEN if token_id is None else token_id
    name = token_text(token_id)
    return InternVLPictures(
        tiles, pictures.num_tokens, pictures.most, marker=name, token=name, token_id=token_id,
        before=texts.text("start_image_token") or "<img>", behind=texts.text("end_image_token") or "</img>",
        tiles_limit=limit,
    )  # fmt: skip
