"""How a model takes its pictures: their size, and what stands for them in a prompt."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, ClassVar, Self

import numpy as np

from engine.interface.types import PictureInput
from engine.weights.formats.image_processor import PROCESSOR_FILE, image_processor, stated_colours
from engine.weights.formats.model_folder import JsonFile, ModelFolder
from server.media.decoded_picture import DecodedPicture, PictureTile
from server.media.picture import Picture
from server.media.picture_decoder import DecodedTiles
from server.media.tiling import Sizing
from server.media.video import Video
from server.protocol.errors import shorten

_MOST_FILTER = 5
SWITCHES = "mm_processor_kwargs"  # the parameter of requests, and the setting
LOW = "low"  # the detail of a picture that is shown only as a whole


@dataclass(frozen=True)
class PictureFormat:
    """The pictures of one model, each of which becomes one tile."""

    sizing: Sizing
    num_tokens: int  # positions that a tile fills; of pictures of any size, multiples that their embeddings take
    most: int  # different tiles in one prompt, or such multiples of all
    marker: str  # what chat templates write in the place of a picture
    token: str  # the name of the token at each position of a tile
    token_id: int
    before: str = ""  # text before the positions
    behind: str = ""

    switch_names: ClassVar[tuple[str, ...]] = ()
    has_row_ends: ClassVar[bool] = False  # whether a token of text stands behind each row of positions

    def text(self, num_rows: int, num_columns: int) -> str:
        """The text of one picture in a prompt, with so many tiles beside that of the whole picture."""
        return self.before + self.positions + self.behind

    @property
    def max_tokens(self) -> int:
        """Positions of the picture that fills the most."""
        return self.num_tokens

    @property
    def max_pictures(self) -> int:
        """Different pictures of one prompt, where each fills the most positions."""
        return self.most // -(-self.max_tokens // self.num_tokens)

    def with_switches(self, switches: Mapping[str, Any]) -> Self:
        """The pictures with other settings of their processor (vLLM's `mm_processor_kwargs`).

        Raises:
            ValueError: there is no such setting, or it has a wrong value.
        """
        given = {name: value for name, value in switches.items() if value is not None}
        for name in given:
            if name not in self.switch_names:
                known = f"it has {', '.join(self.switch_names)}" if self.switch_names else "it has none"
                raise ValueError(
                    f"{SWITCHES} has the name {shorten(name)}, which the image processor of this model does not have; "
                    f"{known}"
                )
        return self.switched(given) if given else self

    def switched(self, switches: Mapping[str, Any]) -> Self:
        """As `with_switches`, of known names whose values are not None."""
        return self

    def sizing_of(self, detail: str) -> Sizing:
        """How a picture is resized for which a client wants this detail, of `low`, `high` and `auto`."""
        return self.sizing

    @property
    def takes_videos(self) -> bool:
        """Whether a conversation may have videos."""
        return False

    @property
    def token_ids(self) -> Set[int]:
        """All tokens that stand for parts of pictures."""
        return {self.token_id}

    @property
    def marker_pattern(self) -> re.Pattern[str]:
        """Finds what chat templates write in the places of pictures and videos."""
        return re.compile(re.escape(self.marker))

    def marker_of(self, picture: Picture) -> str:
        """What chat templates write in the place of this one."""
        return self.marker

    def frame_sizing(self, num_frames: int) -> Sizing:
        """How the frames of a video of so many are resized, of a model that takes videos."""
        raise NotImplementedError

    def decoded_video(self, frames: Sequence[DecodedTiles], video: Video) -> DecodedPicture:
        """A video as such a model takes it; raises ValueError where its frames have different sizes."""
        raise NotImplementedError

    def decoded(self, tiles: DecodedTiles) -> DecodedPicture:
        """The picture as the model takes it."""
        made = [PictureTile(pixels, sha256(pixels.data).digest(), self.num_tokens) for pixels in tiles.pixels]
        return DecodedPicture(tuple(made), self.text(tiles.num_rows, tiles.num_columns))

    def num_blocks(self, tile: PictureTile) -> int:
        """What a tile counts of `most`."""
        return -(-tile.num_tokens // self.num_tokens)

    @property
    def positions(self) -> str:
        """The text of one tile."""
        return self.token * self.num_tokens


@dataclass(frozen=True)
class PatchPictures(PictureFormat):
    """A picture of any size; each square of patches is a token."""

    patch_size: int = 16
    merge_size: int = 2  # patches on a side of a square

    def text(self, num_rows: int, num_columns: int) -> str:
        """As `PictureFormat.text`, of so many rows and columns of squares."""
        return self.before + self.token * (num_rows * num_columns) + self.behind

    def decoded(self, tiles: DecodedTiles) -> DecodedPicture:
        """As `PictureFormat.decoded`, with the patches of each square beside each other."""
        rows, columns, patches = tiles.num_rows, tiles.num_columns, self.patches(tiles)
        digest = sha256(patches.data)
        digest.update(f"{rows} × {columns}".encode())
        tile = PictureTile(patches, digest.digest(), rows * columns, (rows, columns))
        return DecodedPicture((tile,), self.text(rows, columns))

    def patches(self, tiles: DecodedTiles) -> np.ndarray:
        """uint8[patches, patch_size, patch_size, 3], those of each square beside each other."""
        rows, columns, merge, patch = tiles.num_rows, tiles.num_columns, self.merge_size, self.patch_size
        squares = tiles.pixels[0].reshape(rows, merge, patch, columns, merge, patch, 3).transpose(0, 3, 1, 4, 2, 5, 6)
        return np.ascontiguousarray(squares.reshape(-1, patch, patch, 3))


def read_processor(folder: ModelFolder) -> JsonFile:
    """The settings of a folder's image processor, empty where there is none; raises ModelError."""
    processor = image_processor(folder)
    if processor is None:
        return JsonFile(folder.path / PROCESSOR_FILE, {})
    stated_colours(processor)  # which the encoder takes, and which may be wrong
    return processor


def refuse_other_edges(processor: JsonFile, pictures: PictureInput) -> None:
    """Raises ModelError where a processor resizes pictures to another size than that of the encoder, or not at all."""
    size = processor.table("size")
    for name, expected in (("height", pictures.height), ("width", pictures.width)):
        if size is not None and size.required_integer(name, least=1) != expected:
            raise processor.error("size", f"the encoder takes pictures of {pictures.height} pixels a side")
    if processor.flag("do_resize") is False:
        raise processor.error("do_resize", "of this architecture it must be true")


def read_filter(processor: JsonFile, default: int) -> int:
    """Pillow's number of the filter that resizes pictures; raises ModelError."""
    resample = processor.integer("resample", least=0, most=_MOST_FILTER)
    return default if resample is None else resample


def switch_integer(switches: Mapping[str, Any], name: str, *, least: int, most: int, default: int) -> int:
    """An integer of `mm_processor_kwargs`; raises ValueError."""
    value = switches.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{SWITCHES}.{name} is {shorten(value)}; it must be an integer from {least} to {most}")
    return value


def switch_flag(switches: Mapping[str, Any], name: str, *, default: bool) -> bool:
    """A flag of `mm_processor_kwargs`; raises ValueError."""
    value = switches.get(name, default)
    if not isinstance(value, bool):
        raise ValueError(f"{SWITCHES}.{name} is {shorten(value)}; it must be true or false")
    return value


def switch_table(switches: Mapping[str, Any], name: str, names: Sequence[str]) -> Mapping[str, Any]:
    """The fields of an object of `mm_processor_kwargs`, with the names that errors give them; raises ValueError."""
    table = switches.get(name, {})
    if not isinstance(table, Mapping) or not table.keys() <= set(names):
        raise ValueError(f"{SWITCHES}.{name} is {shorten(table)}; it must be an object with {' and '.join(names)}")
    return {f"{name}.{key}": value for key, value in table.items() if value is not None}
