"""Pictures that go with a question: files of this machine, small enough for the body of a request."""

import base64
import io
import warnings
from pathlib import Path
from typing import Any

from engine.interface.regular_file import open_regular
from server.cli.chat.conversation import ConversationError

MAX_FILE_BYTES = 64 << 20
MAX_UNCHANGED_BYTES = 512 << 10  # a larger file is made smaller: pictures of earlier questions go with each request
MAX_EDGE = 1568  # pixels
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF")  # that a server reads
_QUALITY = 88


def picture_part(path: Path) -> dict[str, Any]:
    """The picture of a file as a part of a message; raises ConversationError."""
    from PIL import Image, ImageOps

    try:
        with open_regular(path) as file:
            content: bytes = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise ConversationError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if len(content) > MAX_FILE_BYTES:
        raise ConversationError(f"{path} has more than {MAX_FILE_BYTES >> 20} MiB")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Pillow about odd files
            picture = Image.open(io.BytesIO(content))
            kind = picture.format or ""
            if len(content) > MAX_UNCHANGED_BYTES or kind not in _FORMATS:
                content, kind = _smaller(ImageOps.exif_transpose(picture)), "JPEG"
    # Pillow raises whatever the plugins of its formats raise: OSError, SyntaxError, struct.error, IndexError, …
    except Exception as error:
        raise ConversationError(f"{path} is no picture that can be read") from error
    url = f"data:image/{kind.lower()};base64,{base64.b64encode(content).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def _smaller(picture: Any) -> bytes:
    """A JPEG file of at most MAX_EDGE pixels."""
    from server.media.decode_worker import as_rgb

    picture = as_rgb(picture)
    picture.thumbnail((MAX_EDGE, MAX_EDGE))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=_QUALITY)
    return file.getvalue()
