"""How Mistral 3 takes pictures, with a token behind each row. Source: transformers' PixtralProcessor."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from engine.interface.types import PictureInput
from engine.weights.formats.image_processor import PROCESSORS_FILE
from engine.weights.formats.model_folder import JsonFile, ModelFolder
from server.media.picture_format import (
    PatchPictures,
    read_filter,
    read_processor,
    switch_integer,
    switch_table,
)
from server.media.tiling import MAX_EDGE, LongestEdge

_BICUBIC = 3  # Pillow's number of the filter
_IMAGE_TOKEN, _PATCH_SIZE, _MERGE_SIZE = 10, 16, 2  # where config.json says nothing; source: transformers
_LONGEST_EDGE = 1024  # where preprocessor_config.json says nothing; source: transformers' PixtralImageProcessor


@dataclass(frozen=True)
class PixtralPictures(PatchPictures):
    """Pictures up to a longest edge."""

    row_end: str = "[IMG_BREAK]"  # the token behind each row but the last
    picture_end: str = "[IMG_END]"  # the one behind the last row
    edge_limit: int = MAX_EDGE  # of a picture, whatever its processor's settings are

    has_row_ends = True
    switch_names = ("size",)

    def text(self, num_rows: int, num_columns: int) -> str:
        """As `PictureFormat.text`, of so many rows and columns of squares."""
        return self.row_end.join([self.token * num_columns] * num_rows) + self.picture_end

    @property
    def max_tokens(self) -> int:
        """As `PictureFormat.max_tokens`."""
        size = self.sizing
        return (-(-size.longest_edge // size.factor)) ** 2 if isinstance(size, LongestEdge) else self.num_tokens

    def switched(self, switches: Mapping[str, Any]) -> Self:
        """As `PictureFormat.switched`."""
        size = self.sizing
        if not isinstance(size, LongestEdge):
            return self
        edges = switch_table(switches, "size", ("longest_edge",))
        longest = switch_integer(edges, "size.longest_edge", least=1, most=self.edge_limit, default=size.longest_edge)
        return replace(self, sizing=size._replace(longest_edge=longest))


def read_pixtral_pictures(
    folder: ModelFolder, pictures: PictureInput, token_text: Callable[[int], str]
) -> PixtralPictures:
    """As `read_picture_format`; raises IndexError where the vocabulary lacks a token."""
    config, processor = folder.config, read_processor(folder)
    texts = folder.json(PROCESSORS_FILE) or JsonFile(folder.path / PROCESSORS_FILE, {})
    vision = config.table("vision_config") or JsonFile(config.path, {})
    patch = vision.integer("patch_size", least=1) or _PATCH_SIZE
    merge = config.integer("spatial_merge_size", least=1) or _MERGE_SIZE
    # Where a file says how pictures are put into texts, its sizes hold, whatever the image processor says.
    _refuse_other_sizes(processor if texts.value("patch_size") is None else texts, patch, merge)
    if processor.flag("do_resize") is False:
        raise processor.error("do_resize", "of this architecture it must be true")
    sizes, factor = processor.table("size"), patch * merge
    edge = _LONGEST_EDGE if sizes is None else sizes.required_integer("longest_edge", least=1, most=MAX_EDGE)
    limit = min(math.isqrt(pictures.max_tokens) * factor, MAX_EDGE)
    token_id = config.integer("image_token_index", least=0)
    if token_id is None:
        token_id = config.integer("image_token_id", least=0)
    token_id = _IMAGE_TOKEN if token_id is None else token_id
    name = token_text(token_id)
    return PixtralPictures(
        LongestEdge(factor, min(edge, limit), read_filter(processor, _BICUBIC)), pictures.num_tokens, pictures.most,
        marker=name, token=name, token_id=token_id, patch_size=patch, merge_size=merge,
        row_end=texts.text("image_break_token") or PixtralPictures.row_end,
        picture_end=texts.text("image_end_token") or PixtralPictures.picture_end, edge_limit=limit,
    )  # fmt: skip


def _refuse_other_sizes(processor: JsonFile, patch: int, merge: int) -> None:
    """Raises ModelError where a processor has other sizes than the model."""
    for name, expected in (("patch_size", patch), ("spatial_merge_size", merge)):
        if processor.value(name) not in (None, expected, {"height": expected, "width": expected}):
            raise processor.error(name, f"it must be that of config.json, {expected}")
