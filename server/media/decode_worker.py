"""The process in which pictures are decoded: it may be killed, and its memory and its time are limited.

It is started with the number of a socket, over which come pictures, each as two messages: what is wanted as JSON, and
the bytes. It answers each with two messages: the reason of a refusal, or null, the numbers of rows and columns of
tiles, and their widths and heights, as JSON, and the pixels of all tiles.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import resource
import signal
import sys
import warnings
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

import numpy as np
from PIL import Image, ImageOps

from server.media.tiles import SizeRefused, Tiles, tile
from server.media.tiling import Sizing, as_sizing

MAX_BYTES = 1 << 30  # of address space; beyond it an allocation fails
MAX_PIXELS = 1 << 25  # of a picture, before it is resized
FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
TIME_SPENT_SIGNAL = signal.SIGPROF  # ends the process when a picture has used its processor time
_WHITE = (255, 255, 255, 255)
_TO_8_BITS = 257  # 65,535 / 255


class DecodeJob(NamedTuple):
    """What is wanted of the bytes of a picture."""

    is_base64: bool
    sizing: Sizing
    seconds: float  # of processor time


class PictureRefused(ValueError):
    """The bytes are no picture that can be decoded; the message is the end of a sentence about them."""


def run() -> None:
    """The main function: serves the socket whose number is the first argument, until that is closed."""
    with suppress(EOFError, OSError):  # OSError: the server ended in the middle of a message
        _run(Connection(int(sys.argv[1])))


def _run(socket: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    limit = MAX_BYTES if most == resource.RLIM_INFINITY else min(MAX_BYTES, most)
    with suppress(ValueError, OSError):  # macOS refuses this limit
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C in a terminal is for the server, whose end closes the socket
    signal.signal(TIME_SPENT_SIGNAL, signal.SIG_DFL)
    socket.send_bytes(b"ready")
    while True:
        is_base64, kind, sizing, seconds = json.loads(socket.recv_bytes())
        job = DecodeJob(is_base64, as_sizing(kind, sizing), seconds)
        content = socket.recv_bytes()
        signal.setitimer(signal.ITIMER_PROF, job.seconds)
        refusal, tiles, pixels = None, Tiles([]), b""
        try:
            tiles = decode(content, job)
            pixels = b"".join([each.tobytes() for each in tiles.pictures])
        except PictureRefused as error:
            refusal = str(error)
        except MemoryError:
            refusal = "takes too much memory to decode"
        signal.setitimer(signal.ITIMER_PROF, 0)
        sizes = [each.size for each in tiles.pictures]
        socket.send_bytes(json.dumps([refusal, tiles.num_rows, tiles.num_columns, sizes]).encode())
        socket.send_bytes(pixels)


def decode(content: bytes, job: DecodeJob) -> Tiles:
    """The tiles of a picture; raises PictureRefused."""
    if job.is_base64:
        try:
            content = binascii.a2b_base64(content, strict_mode=True)
        except ValueError:
            content = _lenient_base64(content)
    if not content:
        raise PictureRefused("is empty")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Pillow about odd files
        return _decode(content, job)


def _lenient_base64(content: bytes) -> bytes:
    """Of base64 with line ends, with percents, without padding, or of the URL-safe alphabet; raises PictureRefused."""
    if b"%" in content:
        content = unquote_to_bytes(content)
    plain = b"".join(content.split()).translate(bytes.maketrans(b"-_", b"+/")).rstrip(b"=")
    try:
        return base64.b64decode(plain + b"=" * (-len(plain) % 4), validate=True)
    except ValueError as error:
        raise PictureRefused(f"is not base64: {error}") from error


def _decode(content: bytes, job: DecodeJob) -> Tiles:
    Image.MAX_IMAGE_PIXELS = None  # the limit is ours, and is checked before anything is decoded
    try:
        picture = Image.open(io.BytesIO(content), formats=FORMATS)
        width, height = picture.size
        if width * height > MAX_PIXELS:
            raise PictureRefused(f"has {width} × {height} pixels; at most {MAX_PIXELS} are allowed")
        if min(width, height) < 1:
            raise PictureRefused(f"has {width} × {height} pixels")
        picture.seek(0)
        picture.load()
        return tile(as_rgb(ImageOps.exif_transpose(picture)), job.sizing)
    except PictureRefused:
        raise
    except SizeRefused as error:
        raise PictureRefused(str(error)) from error
    except MemoryError:
        raise
    # Pillow raises whatever the plugins of its formats raise: OSError, SyntaxError, struct.error, IndexError, …
    except Exception as error:
        raise PictureRefused(f"is damaged, or not a PNG, JPEG, WebP or GIF: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    text = str(error).replace("\n", " ")
    return "its format is not known" if "cannot identify" in text else text[:200] or type(error).__name__


def as_rgb(picture: Image.Image) -> Image.Image:
    """The picture in 8 bits for each colour, over white where it is transparent."""
    if picture.mode == "I" or picture.mode.startswith("I;16"):
        gray = np.asarray(picture).astype(np.float64)
        if gray.size and gray.max() > np.iinfo(np.uint8).max:
            gray = gray / _TO_8_BITS
        picture = Image.fromarray(np.clip(np.rint(gray), 0, 255).astype(np.uint8))
    has_alpha = picture.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in picture.info
    if has_alpha:
        picture = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", picture.size, _WHITE), picture).convert("RGB")
    return picture.convert("RGB")
