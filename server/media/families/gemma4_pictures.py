"""How Gemma 4 takes pictures, of whatever size as about as many tokens. Source: transformers' Gemma4ImageProcessor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from engine.interface.types import PictureInput
from engine.weights.formats.image_processor import DEVIATION, MEAN, stated_colours
from engine.weights.formats.model_folder import JsonFile, ModelFolder
from server.media.picture_format import SWITCHES, PatchPictures, read_filter, read_processor
from server.media.tiling import FilledSize
from server.protocol.errors import shorten

_BICUBIC = 3  # Pillow's number of the filter
_PATCH_SIZE, _MERGE_SIZE = 16, 3  # where config.json says nothing
_MAX_SOFT_TOKENS = "max_soft_tokens"
_CHOICES = (70, 140, 280, 560, 1120)  # of the most tokens of a picture
_USUAL = 280


@dataclass(frozen=True)
class Gemma4Pictures(PatchPictures):
    """A picture that is made larger or smaller until it fills almost as many tokens as it may."""

    tokens_limit: int = _USUAL  # of a picture, whatever its processor's settings are

    switch_names = (_MAX_SOFT_TOKENS,)

    @property
    def max_tokens(self) -> int:
        """As `PictureFormat.max_tokens`."""
        return self.sizing.max_squares if isinstance(self.sizing, FilledSize) else self.num_tokens

    def switched(self, switches: Mapping[str, Any]) -> Self:
        """As `PictureFormat.switched`."""
        most, choices = switches[_MAX_SOFT_TOKENS], [each for each in _CHOICES if each <= self.tokens_limit]
        if type(most) is not int or most not in choices or not isinstance(self.sizing, FilledSize):
            allowed = ", ".join(map(str, choices)) or "none with this max_model_len"
            raise ValueError(f"{SWITCHES}.{_MAX_SOFT_TOKENS} is {shorten(most)}; it must be one of {allowed}")
        return replace(self, sizing=self.sizing._replace(max_squares=most))


def read_gemma4_pictures(
    folder: ModelFolder, pictures: PictureInput, token_text: Callable[[int], str]
) -> Gemma4Pictures:
    """As `read_picture_format`; raises IndexError where the vocabulary lacks a token."""
    processor = read_processor(folder)
    stated = stated_colours(processor)
    for name, usual in ((MEAN, [0.0] * 3), (DEVIATION, [1.0] * 3)):
        if stated.get(name) not in (None, usual):
            raise processor.error(name, f"of this architecture it must be {usual}")
    vision = folder.config.table("vision_config") or JsonFile(folder.config.path, {})
    patch = vision.integer("patch_size", least=1) or _PATCH_SIZE
    merge = vision.integer("pooling_kernel_size", least=1) or _MERGE_SIZE
    for name, expected in (("patch_size", patch), ("pooling_kernel_size", merge)):
        if processor.value(name) not in (None, expected):
            raise processor.error(name, f"it must be that of config.json, {expected}")
    if processor.flag("do_resize") is False:
        raise processor.error("do_resize", "of this architecture it must be true")
    if processor.flag("do_normalize"):
        raise processor.error("do_normalize", "of this architecture it must be false")
    most = processor.integer(_MAX_SOFT_TOKENS, least=1) or _USUAL
    token, begin, end = (
        folder.config.required_integer(name, least=0) for name in ("image_token_id", "boi_token_id", "eoi_token_id")
    )
    return Gemma4Pictures(
        FilledSize(patch * merge, min(most, pictures.max_tokens), read_filter(processor, _BICUBIC)),
        pictures.num_tokens, pictures.most, marker=token_text(token), token=token_text(token), token_id=token,
        before=token_text(begin), behind=token_text(end), patch_size=patch, merge_size=merge,
        tokens_limit=pictures.max_tokens,
    )  # fmt: skip
