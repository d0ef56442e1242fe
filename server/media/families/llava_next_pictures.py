"""How LLaVA-NeXT and Granite Vision take pictures, as a map of tiles. Source: transformers' LlavaNextProcessor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np

from engine.interface.types import PictureInput, TileMap
from engine.weights.formats.image_processor import PROCESSORS_FILE
from engine.weights.formats.model_folder import JsonFile, ModelFolder
from server.media.decoded_picture import DecodedPicture, PictureTile
from server.media.picture_decoder import DecodedTiles
from server.media.picture_format import LOW, PatchPictures, read_filter, read_processor
from server.media.tiling import MappedGrid, Sizing

_BICUBIC = 3  # Pillow's number of the filter
_IMAGE_TOKEN = 32_000  # where config.json says nothing; source: transformers' LlavaNextConfig
_PATCH_SIZES = {"siglip_vision_model": 16}  # likewise; source: transformers' configurations of encoders
_PATCH_SIZE = 32
_PINPOINTS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]


@dataclass(frozen=True)
class LlavaNextPictures(PatchPictures):
    """The whole picture as one tile, and the rows of its tiles put together, with a token behind each."""

    @property
    def max_tokens(self) -> int:
        """As `PictureFormat.max_tokens`."""
        size = self.sizing
        return max(map(size.num_tokens, size.grids)) if isinstance(size, MappedGrid) else self.num_tokens

    def sizing_of(self, detail: str) -> Sizing:
        """As `PictureFormat.sizing_of`; a picture of low detail is cut into the fewest tiles."""
        size = self.sizing
        if detail != LOW or not isinstance(size, MappedGrid):
            return size
        fewest = min(rows * columns for rows, columns in size.grids)
        return size._replace(grids=tuple(grid for grid in size.grids if grid[0] * grid[1] == fewest))

    def decoded(self, tiles: DecodedTiles) -> DecodedPicture:
        """As `PictureFormat.decoded`, all tiles as one."""
        grid = tiles.num_rows, tiles.num_columns
        whole = TileMap.from_grid(grid)
        assert isinstance(self.sizing, MappedGrid)
        num_tokens = self.sizing.side**2 + whole.rows * (whole.columns + 1)
        pixels = np.stack(tiles.pixels)
        digest = sha256(pixels.data)
        digest.update(f"{whole}".encode())
        tile = PictureTile(pixels, digest.digest(), num_tokens, grid)
        return DecodedPicture((tile,), self.token * num_tokens)


def read_llava_next_pictures(
    folder: ModelFolder, pictures: PictureInput, token_text: Callable[[int], str]
) -> LlavaNextPictures:
    """As `read_picture_format`; raises IndexError where the vocabulary lacks a token."""
    config, processor = folder.config, read_processor(folder)
    texts = folder.json(PROCESSORS_FILE) or JsonFile(folder.path / PROCESSORS_FILE, {})
    vision = config.table("vision_config") or JsonFile(config.path, {})
    patch = vision.integer("patch_size", least=1) or _PATCH_SIZES.get(vision.text("model_type") or "", _PATCH_SIZE)
    edge = pictures.pixels_shape[1]
    if texts.value("patch_size") not in (None, patch):
        raise texts.error("patch_size", f"it must be that of config.json, {patch}")
    for name in ("size", "crop_size"):
        sizes = processor.value(name)
        values = list(sizes.values()) if isinstance(sizes, dict) else [sizes]
        if any(value not in (None, edge) for value in values):
            raise processor.error(name, f"the encoder takes tiles of {edge} pixels a side")
    if processor.flag("do_resize") is False:
        raise processor.error("do_resize", "of this architecture it must be true")
    pinpoints = config.value("image_grid_pinpoints") or _PINPOINTS
    if processor.value("image_grid_pinpoints") not in (None, pinpoints):
        raise processor.error("image_grid_pinpoints", "it must be that of config.json")
    tiles = MappedGrid(edge, edge // patch, read_filter(processor, _BICUBIC), _grids(pinpoints, edge))
    most = min(pictures.max_tokens, pictures.most * pictures.num_tokens)
    fitting = tuple(grid for grid in tiles.grids if tiles.num_tokens(grid) <= most)
    tiles = tiles._replace(grids=fitting or (min(tiles.grids, key=tiles.num_tokens),))
    token_id = config.integer("image_token_index", least=0)
    if token_id is None:
        token_id = config.integer("image_token_id", least=0)
    token_id = _IMAGE_TOKEN if token_id is None else token_id
    name = token_text(token_id)
    return LlavaNextPictures(
        tiles, pictures.num_tokens, pictures.most, marker=name, token=name, token_id=token_id, patch_size=patch,
        merge_size=1,
    )  # fmt: skip


def _grids(pinpoints: Sequence[Sequence[Any]], edge: int) -> tuple[tuple[int, int], ...]:
    """Rows and columns of tiles, of sizes that the engine has checked."""
    return tuple((int(height) // edge, int(width) // edge) for height, width in pinpoints)
