"""A raw text with pictures, which no chat template has written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Self

from server.generation.prompt_sources import TextPrompt
from server.media.decoded_picture import DecodedPicture
from server.media.picture import NOTE, Picture, image_not_supported
from server.text.text_model import TextModel


class PicturePrompt(NamedTuple):
    """Texts and pictures in their order, as one text that the model continues."""

    parts: Sequence[str | Picture]
    decoded_pictures: Mapping[Picture, DecodedPicture] = MappingProxyType({})
    tools: None = None

    @property
    def num_chars(self) -> int:
        return sum(len(part) for part in self.parts if isinstance(part, str))

    @property
    def pictures(self) -> Sequence[Picture]:
        return [part for part in self.parts if isinstance(part, Picture)]

    @property
    def decoded(self) -> Sequence[DecodedPicture]:
        known = self.decoded_pictures
        return [known[picture] for picture in self.pictures] if known else ()

    def with_decoded(self, decoded: Mapping[Picture, DecodedPicture]) -> Self:
        return self._replace(decoded_pictures=decoded)

    def encode(self, text_model: TextModel, max_model_len: int | None = None, *, is_brief: bool = False) -> list[int]:
        """Raises ApiError, too, for a picture where the model reads text alone."""
        texts = [part if isinstance(part, str) else self._text_of(part, text_model) for part in self.parts]
        return TextPrompt("".join(texts)).encode(text_model, max_model_len, is_brief=is_brief)

    def _text_of(self, picture: Picture, text_model: TextModel) -> str:
        if text_model.pictures is not None:
            return self.decoded_pictures[picture].text
        if text_model.ignores_media:
            return NOTE
        raise image_not_supported(picture)
