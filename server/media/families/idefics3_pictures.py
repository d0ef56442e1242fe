"""How Idefics 3 and SmolVLM take pictures, cut into squares. Source: transformers' SmolVLMProcessor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from engine.interface.types import PictureInput
from engine.weights.formats.model_folder import JsonFile, ModelFolder
from server.media.picture_format import (
    LOW,
    PictureFormat,
    read_filter,
    read_processor,
    switch_flag,
    switch_integer,
    switch_table,
)
from server.media.tiling import MAX_EDGE, Sizing, Tiling

_LANCZOS = 1  # Pillow's number of the filter
_AROUND = "<fake_token_around_image>"
_WHOLE = "<global-img>"
_IMAGE_TOKEN = 128_257  # where config.json says nothing; source: transformers' SmolVLMConfig
_TILES_AN_EDGE = 4  # likewise; source: transformers' SmolVLMImageProcessor
_MOST_TILES_AN_EDGE = 16


@dataclass(frozen=True)
class Idefics3Pictures(PictureFormat):
    """Each tile has its place before it; the whole picture comes last."""

    switch_names = ("do_image_splitting", "size")

    def text(self, num_rows: int, num_columns: int) -> str:
        """As `PictureFormat.text`."""
        lines = [
            "".join(f"{_AROUND}<row_{row}_col_{column}>{self.positions}" for column in range(1, num_columns + 1))
            for row in range(1, num_rows + 1)
        ]
        if lines:
            lines.append("")
        return "\n".join([*lines, f"{_AROUND}{_WHOLE}{self.positions}{_AROUND}"])

    @property
    def max_tokens(self) -> int:
        """As `PictureFormat.max_tokens`."""
        size = self.sizing
        if not isinstance(size, Tiling) or not size.is_cut or size.longest_edge <= size.width:
            return self.num_tokens
        return ((-(-size.longest_edge // size.width)) ** 2 + 1) * self.num_tokens

    def sizing_of(self, detail: str) -> Sizing:
        """As `PictureFormat.sizing_of`; a picture of low detail is not cut."""
        size = self.sizing
        return size._replace(longest_edge=0) if detail == LOW and isinstance(size, Tiling) else size

    def switched(self, switches: Mapping[str, Any]) -> Self:
        """As `PictureFormat.switched`."""
        size = self.sizing
        if not isinstance(size, Tiling):
            return self
        edges = switch_table(switches, "size", ("longest_edge",))
        most = min(MAX_EDGE, _MOST_TILES_AN_EDGE * size.width)
        longest = switch_integer(edges, "size.longest_edge", least=1, most=most, default=size.longest_edge)
        is_cut = switch_flag(switches, "do_image_splitting", default=size.is_cut)
        return replace(self, sizing=size._replace(longest_edge=longest, is_cut=is_cut))


def read_idefics3_pictures(
    folder: ModelFolder, pictures: PictureInput, token_text: Callable[[int], str]
) -> Idefics3Pictures:
    """As `read_picture_format`; raises IndexError where the vocabulary lacks a token."""
    processor = read_processor(folder)
    token_id = folder.config.integer("image_token_id", least=0)
    token_id = _IMAGE_TOKEN if token_id is None else token_id
    edge = _longest_edge(processor, "max_image_size", pictures.height)
    if edge != pictures.height:
        raise processor.error("max_image_size", f"the encoder takes pictures of {pictures.height} pixels a side")
    longest_edge = _longest_edge(processor, "size", min(_TILES_AN_EDGE * edge, MAX_EDGE))
    if longest_edge > _MOST_TILES_AN_EDGE * edge:
        raise processor.error("size", f"at most {_MOST_TILES_AN_EDGE} tiles of {edge} pixels a side are served")
    if processor.flag("do_resize") is False:
        raise processor.error("do_resize", "of this architecture it must be true")
    is_cut = processor.flag("do_image_splitting") is not False
    tiling = Tiling(edge, edge, read_filter(processor, _LANCZOS), longest_edge, is_cut)
    name = token_text(token_id)
    return Idefics3Pictures(tiling, pictures.num_tokens, pictures.most, marker=name, token=name, token_id=token_id)


def _longest_edge(processor: JsonFile, name: str, default: int) -> int:
    size = processor.table(name)
    return default if size is None else size.required_integer("longest_edge", least=1, most=MAX_EDGE)
