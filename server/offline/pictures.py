"""Pictures in the messages of a program: paths, bytes and PIL images in the place of addresses."""

import base64
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from sampling.host.params import InvalidParameter

_URL = "data:;base64,"


@runtime_checkable
class _Saves(Protocol):
    """A PIL image, without an import of PIL."""

    def save(self, fp: io.BytesIO, kind: str, /) -> None: ...


def picture_on_the_wire(part: Any) -> Any:
    """A part of a content with a data URL in the place of a path, bytes or a PIL image.

    Raises InvalidParameter: there is no file at the path.
    """
    if not isinstance(part, Mapping):
        return part
    if part.get("type") == "video" and isinstance(part.get("video"), list):  # of frames
        return {**part, "video": [_as_url(frame) for frame in part["video"]]}
    if part.get("type") not in ("image_url", "image"):
        return part
    given = part.get("image_url", part.get("image"))
    options = {name: value for name, value in given.items() if name != "url"} if isinstance(given, Mapping) else {}
    url = _as_url(given.get("url") if isinstance(given, Mapping) else given)
    return {"type": "image_url", "image_url": {**options, "url": url}}


def _as_url(picture: Any) -> Any:
    if isinstance(picture, str) and not picture.startswith(("data:", "http:", "https:", "file:")):
        picture = Path(picture)
    if isinstance(picture, Path):
        try:
            picture = picture.read_bytes()
        except OSError as error:
            raise InvalidParameter("messages", f"the picture {picture} cannot be read: {error.strerror}") from error
    elif isinstance(picture, _Saves):
        file = io.BytesIO()
        picture.save(file, "PNG")
        picture = file.getvalue()
    if isinstance(picture, bytes | bytearray):
        return _URL + base64.b64encode(picture).decode()
    return picture
