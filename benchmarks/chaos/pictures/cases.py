"""Files that are, or claim to be, pictures: good ones of odd kinds, and others that may take memory or time."""

from __future__ import annotations

import io
import random
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from PIL import Image

_PNG = b"\x89PNG\r\n\x1a\n"
_END_OF_SCAN, _START_OF_SCAN = b"\xff\xd9", b"\xff\xda"
_MANY_SCANS, _MANY_FRAMES, _MANY_CHUNKS = 400, 300, 20_000
_MEGABYTE = bytes(1 << 20)
_FORMATS, _OTHER_FORMATS = ("PNG", "JPEG", "GIF", "WEBP"), ("BMP", "TIFF", "ICO", "TGA", "PCX", "PPM")


class PictureCase(NamedTuple):
    """A file, and whether it must be read: None where both are right answers."""

    name: str
    content: bytes
    is_good: bool | None


def picture_cases(draw: random.Random, count: int, *, is_light: bool = False) -> Iterator[PictureCase]:
    """So many files: one of every kind, then good files with random damage.

    Args:
        is_light: whether those are left out that take long to make or to decode.
    """
    return islice(_all(draw, () if is_light else _HEAVY), count)


def _all(draw: random.Random, heavy: Sequence[_Kind]) -> Iterator[PictureCase]:
    for name, make, is_good in (*_GOOD, *_HOSTILE, *heavy):
        yield PictureCase(name, make(), is_good)
    good = [_saved(_gradient(), form) for form in _FORMATS]
    while True:
        content = draw.choice(good)
        match draw.randrange(4):
            case 0:
                yield PictureCase("truncated", content[: draw.randrange(len(content))], None)
            case 1:
                damaged = bytearray(content)
                for _ in range(draw.randint(1, 12)):
                    damaged[draw.randrange(len(damaged))] = draw.randrange(256)
                yield PictureCase("changed bytes", bytes(damaged), None)
            case 2:
                at = draw.randrange(len(content))
                more = draw.randbytes(draw.randint(1, 2000))
                yield PictureCase("bytes put between", content[:at] + more + content[at:], None)
            case _:
                yield PictureCase("random bytes behind a signature", content[:16] + draw.randbytes(5000), None)


def _saved(picture: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, form, **options)
    return file.getvalue()


def _gradient(size: int = 64) -> Image.Image:
    return Image.merge("RGB", [Image.linear_gradient("L").resize((size, size)).rotate(90 * turn) for turn in range(3)])


def _plain(form: str) -> bytes:
    return _saved(_gradient(), form)


def _mode(mode: str) -> bytes:
    return _saved(_gradient().convert(mode))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _png(
    width: int, height: int, packed: bytes, *, depth: int = 8, colour: int = 2, more: bytes = b"", interlaced: int = 0
) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced)
    return _PNG + _chunk(b"IHDR", head) + more + _chunk(b"IDAT", packed) + _chunk(b"IEND", b"")


def _packed_zeros(num_bytes: int) -> bytes:
    """As zlib packs them, without packing each megabyte anew."""

    def packed(data: bytes, end: int) -> bytes:
        packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
        return packer.compress(data) + packer.flush(end)

    num_whole, rest = divmod(num_bytes, len(_MEGABYTE))
    sum_of_zeros = (num_bytes % 65_521) << 16 | 1  # Adler-32
    blocks = packed(_MEGABYTE, zlib.Z_FULL_FLUSH) * num_whole + packed(bytes(rest), zlib.Z_FINISH)
    return b"\x78\xda" + blocks + struct.pack(">I", sum_of_zeros)


def _bomb(width: int, height: int, *, depth: int = 8, colour: int = 2, interlaced: int = 0) -> bytes:
    """A PNG of zeros, whose rows are as long as its kind says."""
    samples = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    packed = _packed_zeros(height * (1 + width * samples * depth // 8))
    return _png(width, height, packed, depth=depth, colour=colour, interlaced=interlaced)


def _with_chunk(kind: bytes, data: bytes) -> bytes:
    """A good PNG with one more chunk behind its head."""
    whole = _saved(_gradient())
    at = len(_PNG) + 25
    return whole[:at] + _chunk(kind, data) + whole[at:]


def _jpeg_of_size(width: int, height: int) -> bytes:
    """A JPEG whose head claims another size."""
    whole = _saved(_gradient(), "JPEG")
    at = whole.index(b"\xff\xc0") + 5
    return whole[:at] + struct.pack(">HH", height, width) + whole[at + 4 :]


def _jpeg_of_scans() -> bytes:
    """A progressive JPEG whose last scan comes again and again: each goes over all of the picture."""
    whole = _saved(Image.new("RGB", (4000, 4000)), "JPEG", progressive=True, quality=50)
    at, end = whole.rindex(_START_OF_SCAN), whole.rindex(_END_OF_SCAN)
    return whole[:end] + whole[at:end] * _MANY_SCANS + whole[end:]


def _gif_of_size(width: int, height: int) -> bytes:
    whole = bytearray(_saved(_gradient(), "GIF"))
    whole[6:10] = struct.pack("<HH", width, height)
    return bytes(whole)


def _gif_frame_of_size(width: int, height: int) -> bytes:
    """A GIF whose frame is larger than its screen."""
    whole = bytearray(_saved(_gradient(), "GIF"))
    at = whole.index(b"\x2c", 13 + 768)
    whole[at + 5 : at + 9] = struct.pack("<HH", width, height)
    return bytes(whole)


def _animation(form: str) -> bytes:
    frames = [Image.new("RGB", (16, 16), (index % 256, 0, 0)) for index in range(_MANY_FRAMES)]
    return _saved(frames[0], form, save_all=True, append_images=frames[1:])


def _webp_canvas() -> bytes:
    """A WebP whose head claims the largest canvas."""
    body = (
        b"WEBP"
        + b"VP8X"
        + struct.pack("<I", 10)
        + b"\x10\0\0\0"
        + b"\xff\xff\xff" * 2
        + _saved(_gradient(), "WEBP")[12:]
    )
    return b"RIFF" + struct.pack("<I", len(body)) + body


def _exif(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return _saved(_gradient(), "JPEG", exif=exif)


def _cmyk() -> bytes:
    return _saved(Image.new("CMYK", (40, 30), (0, 255, 255, 0)), "JPEG")


def _palette() -> bytes:
    return _saved(_gradient().quantize(7), "PNG", transparency=bytes(range(7)))


_SCRIPT = b"<script>alert(1)</script>"
_Kind = tuple[str, Callable[[], bytes], bool | None]
_GOOD: tuple[_Kind, ...] = (
    *((f"a plain {form}", partial(_plain, form), True) for form in _FORMATS),
    *((f"{mode} in a PNG", partial(_mode, mode), True) for mode in ("1", "L", "LA", "P", "RGBA")),
    *((f"orientation {number}", partial(_exif, number), True) for number in (1, 6, 8, 9, 255)),
    ("CMYK in a JPEG", _cmyk, True),
    ("a palette with transparency", _palette, True),
    ("16 bits of gray", lambda: _saved(Image.linear_gradient("L").convert("I;16")), True),
    ("16 bits of three colours", lambda: _bomb(30, 20, depth=16, colour=2), True),
    ("16 bits with transparency", lambda: _bomb(30, 20, depth=16, colour=6), True),
    ("an ICC profile that is none", lambda: _saved(_gradient(), "JPEG", icc_profile=b"\0" * 3000), True),
    ("a large ICC profile", lambda: _saved(_gradient(), "JPEG", icc_profile=bytes(500_000)), True),
    ("an animated GIF", lambda: _animation("GIF"), True),
    ("an animated PNG", lambda: _animation("PNG"), True),
    ("an animated WebP", lambda: _animation("WEBP"), True),
    ("a progressive JPEG", lambda: _saved(_gradient(), "JPEG", progressive=True), True),
    ("one pixel", lambda: _saved(Image.new("RGB", (1, 1))), True),
    ("a line", lambda: _saved(Image.new("L", (20_000, 1))), True),
    ("a page behind a PNG", lambda: _saved(_gradient()) + b"<html>" + _SCRIPT, True),
    ("an archive behind a JPEG", lambda: _saved(_gradient(), "JPEG") + b"PK\x03\x04" + bytes(200), True),
    ("a script in the comment of a GIF", lambda: _saved(_gradient(), "GIF", comment=b"/*" + _SCRIPT + b"*/"), True),
)  # fmt: skip
_HOSTILE: tuple[_Kind, ...] = (
    ("nothing", lambda: b"", False),
    ("one byte", lambda: b"\x89", False),
    ("zeros", lambda: bytes(100_000), False),
    ("a head of 65,535² pixels", lambda: _png(65_535, 65_535, b""), False),
    ("a head of 2,147,483,647² pixels", lambda: _png((1 << 31) - 1, (1 << 31) - 1, b""), False),
    ("a head of 4,294,967,295 × 1 pixels", lambda: _png((1 << 32) - 1, 1, b""), False),
    ("a head without pixels", lambda: _png(0, 0, b""), False),
    ("a head of a colour that there is not", lambda: _png(9, 9, b"", colour=5), False),
    ("a JPEG of 65,535² pixels", lambda: _jpeg_of_size(65_535, 65_535), False),
    ("a JPEG without rows", lambda: _jpeg_of_size(64, 0), False),
    ("a GIF of 65,535² pixels", lambda: _gif_of_size(65_535, 65_535), False),
    ("a GIF with a frame of 65,535² pixels", lambda: _gif_frame_of_size(65_535, 65_535), False),
    ("a WebP of 16,777,216² pixels", _webp_canvas, False),
    ("a chunk longer than the file", lambda: _PNG + struct.pack(">I", (1 << 31) - 1) + b"IHDR" + bytes(20), False),
    ("a text", lambda: b"a picture of the tide\n" * 100, False),
    ("a page", lambda: b"<!doctype html>" + _SCRIPT, False),
    ("a drawing", lambda: b"<svg xmlns='http://www.w3.org/2000/svg'>" + _SCRIPT + b"</svg>", False),
    ("a document", lambda: b"%PDF-1.7\n" + bytes(500), False),
    ("PostScript", lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", False),
    ("an archive", lambda: b"PK\x03\x04" + bytes(500), False),
    *((f"a {form}", partial(_plain, form), False) for form in _OTHER_FORMATS),
)  # fmt: skip
_HEAVY: tuple[_Kind, ...] = (
    ("a bomb as large as is allowed", lambda: _bomb(5790, 5790), None),
    ("a bomb with 16 bits and transparency", lambda: _bomb(5790, 5790, depth=16, colour=6), None),
    ("a bomb of gray", lambda: _bomb(5790, 5790, depth=16, colour=0), None),
    ("a bomb with two bits a pixel", lambda: _bomb(5788, 5790, depth=2, colour=0), None),
    ("an interlaced bomb", lambda: _bomb(5000, 5000, interlaced=1), None),
    ("a bomb larger than is allowed", lambda: _bomb(9000, 9000, depth=1, colour=0), False),
    ("rows longer than the head says", lambda: _png(4, 4, _packed_zeros(64 << 20)), None),
    ("rows shorter than the head says", lambda: _png(4000, 4000, zlib.compress(b"\0")), None),
    ("a bomb in an ICC profile", lambda: _with_chunk(b"iCCP", b"x\0\0" + _packed_zeros(256 << 20)), None),
    ("a bomb in a text", lambda: _with_chunk(b"zTXt", b"x\0\0" + _packed_zeros(256 << 20)), None),
    ("a bomb in an international text", lambda: _with_chunk(b"iTXt", b"x\0\1\0\0\0" + _packed_zeros(256 << 20)), None),
    ("many empty chunks", lambda: _saved(_gradient())[:33] + _chunk(b"IDAT", b"") * _MANY_CHUNKS, None),
    ("many scans", _jpeg_of_scans, None),
)  # fmt: skip
