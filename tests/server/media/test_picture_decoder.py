"""Pictures of all kinds, good and hostile, in the process that decodes them."""

from __future__ import annotations

import asyncio
import base64
import io
import struct
import threading
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import closing, suppress
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from PIL import Image

from engine.interface.python_process import python_command
from engine.interface.types import QueueFull
from server.admission.keyring import work_for
from server.media import picture_decoder
from server.media.picture_decoder import DecodedTiles, PictureDecoder, UndecodablePicture
from server.media.tiling import ThumbnailGrid, Tiling

RED, WHITE = [255, 0, 0], [255, 255, 255]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def decoder() -> AsyncIterator[PictureDecoder]:
    decoder = PictureDecoder()
    yield decoder
    decoder.close()


pytestmark = pytest.mark.asyncio(loop_scope="module")


def encoded(picture: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, form, **options)
    return file.getvalue()


async def decode(decoder: PictureDecoder, content: bytes, size: int = 4, **options: Any) -> np.ndarray:
    tiles = await decoder.decode(content, Tiling(size, size, 2), **{"is_base64": False, **options})
    assert tiles[1:] == (0, 0)
    return tiles.pixels[0]


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, data: bytes, depth: int = 8, colour: int = 2) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("form", ["PNG", "GIF", "WEBP"])
async def test_every_format_is_read(decoder: PictureDecoder, form: str) -> None:
    options = {"lossless": True} if form == "WEBP" else {}
    pixels = await decode(decoder, encoded(Image.new("RGB", (9, 5), (255, 0, 0)), form, **options))
    assert pixels.shape == (4, 4, 3)
    assert np.abs(pixels.astype(int) - RED).max() <= 2


async def test_a_jpeg_is_turned_as_its_exif_says(decoder: PictureDecoder) -> None:
    picture = Image.new("RGB", (16, 16), "white")
    picture.paste((255, 0, 0), (0, 0, 16, 8))  # red above
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    pixels = await decode(decoder, encoded(picture, "JPEG", exif=exif, quality=95), 16)
    assert np.abs(pixels[14, 8].astype(int) - RED).max() < 12
    assert np.abs(pixels[1, 8].astype(int) - WHITE).max() < 12


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
async def test_transparent_pixels_are_white(decoder: PictureDecoder, mode: str) -> None:
    picture = Image.new("RGBA", (4, 4), (0, 0, 0, 0))
    picture.paste((0, 0, 0, 255), (0, 0, 2, 4))
    content = encoded(picture, "GIF") if mode == "P" else encoded(picture.convert(mode))
    pixels = await decode(decoder, content)
    assert pixels[0, 0].tolist() == [0, 0, 0]
    assert pixels[0, 3].tolist() == WHITE


async def test_sixteen_bits_are_scaled(decoder: PictureDecoder) -> None:
    rows = b"".join(b"\0" + struct.pack(">4H", 0, 0x7FFF, 0x8080, 0xFFFF) for _ in range(4))
    pixels = await decode(decoder, png(4, 4, rows, depth=16, colour=0))
    assert pixels[0, :, 0].tolist() == [0, 127, 128, 255]


async def test_other_colours_become_red_green_and_blue(decoder: PictureDecoder) -> None:
    assert (await decode(decoder, encoded(Image.new("CMYK", (4, 4), (0, 255, 255, 0)), "JPEG")))[0, 0, 0] > 240
    assert (await decode(decoder, encoded(Image.new("1", (4, 4), 1))))[0, 0].tolist() == WHITE


async def test_the_first_frame_of_several_is_read(decoder: PictureDecoder) -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    content = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert (await decode(decoder, content))[0, 0].tolist() == RED


async def test_tiles_differ_in_size(decoder: PictureDecoder) -> None:
    sizing = ThumbnailGrid(4, 2, 4, 20, 2, tile_size=8, min_tiles=2, max_tiles=10, tolerance=2.0)
    picture = Image.new("RGB", (97, 33), "white")
    picture.paste((255, 0, 0), (0, 0, 30, 33))
    tiles = await decoder.decode(encoded(picture), sizing, is_base64=False)
    assert (tiles.num_rows, tiles.num_columns) == (1, 3)
    assert [each.shape for each in tiles.pixels] == [(8, 8, 3)] * 3 + [(8, 28, 3)]
    assert [each[0, 0].tolist() for each in tiles.pixels] == [RED, WHITE, WHITE, RED]


async def test_base64_in_any_clothes(decoder: PictureDecoder) -> None:
    content = encoded(Image.new("RGB", (4, 4), "red"))
    plain = base64.b64encode(content)
    for text in (plain, plain.rstrip(b"="), base64.encodebytes(content), base64.urlsafe_b64encode(content)):
        assert (await decode(decoder, text, is_base64=True))[0, 0].tolist() == RED


GOOD = encoded(Image.effect_noise((64, 64), 50).convert("RGB"))
HOSTILE = {
    "nothing": b"",
    "text": b"hello",
    "a picture without its end": GOOD[: len(GOOD) // 2],
    "a header alone": GOOD[:33],
    "a huge header": png(65_535, 65_535, b""),
    "no pixels": png(0, 4, b""),
    "a bomb": png(30_000, 30_000, bytes(1 << 20)),
    "missing rows": png(64, 64, b"\0" * 10),
    "a wrong chunk": GOOD[:40] + b"\xff" * 30 + GOOD[70:],
    "svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    "pdf": b"%PDF-1.4\n",
    "bmp": encoded(Image.new("RGB", (4, 4)), "BMP"),
    "tiff": encoded(Image.new("RGB", (4, 4)), "TIFF"),
    "jpeg start": b"\xff\xd8\xff\xe0" + bytes(100),
    "webp head": b"RIFF\x40\0\0\0WEBPVP8 " + bytes(60),
    "gif head": b"GIF89a\xff\xff\xff\xff\xf7\0\0",
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_files_are_refused_and_nothing_is_lost(decoder: PictureDecoder, name: str) -> None:
    with pytest.raises(UndecodablePicture) as refusal:
        await decode(decoder, HOSTILE[name])
    assert str(refusal.value)
    assert (await decode(decoder, encoded(Image.new("RGB", (4, 4), "red"))))[0, 0].tolist() == RED


@pytest.mark.parametrize("at", range(0, len(GOOD), max(1, len(GOOD) // 40)))
async def test_changed_bytes_end_no_process(decoder: PictureDecoder, at: int) -> None:
    damaged = GOOD[:at] + bytes([GOOD[at] ^ 0xFF]) + GOOD[at + 1 :]
    with suppress(UndecodablePicture):
        await decode(decoder, damaged)
    assert (await decode(decoder, GOOD)).shape == (4, 4, 3)


async def test_an_idle_timer_that_fires_late_does_not_end_a_process_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[Callable[[], None]] = []
    commands: list[object] = []

    class LateTimer(threading.Timer):
        def __init__(self, interval: float, function: Callable[..., None], args: Sequence[object] = ()) -> None:
            super().__init__(interval, function, args)
            ends.append(lambda: function(*args))

    def counted(*arguments: str) -> list[str]:
        commands.append(arguments)
        return python_command(*arguments)

    monkeypatch.setattr(threading, "Timer", LateTimer)
    monkeypatch.setattr(picture_decoder, "python_command", counted)
    content = encoded(Image.new("RGB", (9, 5), (255, 0, 0)))
    with closing(PictureDecoder()) as decoder:
        for _ in range(2):
            await decode(decoder, content)
        ends[0]()
        await decode(decoder, content)
        assert len(commands) == 1
        ends[-1]()
        await decode(decoder, content)
        assert len(commands) == 2


class HeldWorker:
    """A process that decodes nothing before it may, and what it got in which order."""

    def __init__(self) -> None:
        self.contents: list[bytes] = []
        self.may_go = threading.Event()
        self.is_held = threading.Event()
        self.is_alive = True

    def decode(self, job: bytes, content: bytes) -> DecodedTiles:
        self.contents.append(content)
        self.is_held.set()
        self.may_go.wait()
        return DecodedTiles([np.zeros((4, 4, 3), np.uint8)], 0, 0)

    def kill(self) -> None:
        pass


async def test_keys_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = HeldWorker()
    monkeypatch.setattr(picture_decoder, "_Worker", lambda: worker)

    async def decode_for(decoder: PictureDecoder, name: str) -> None:
        work_for(name)
        await decode(decoder, name.encode())

    with closing(PictureDecoder()) as decoder:
        tasks = [asyncio.create_task(decode_for(decoder, name)) for name in ("flood",) * 5 + ("other",)]
        await asyncio.to_thread(worker.is_held.wait)
        worker.may_go.set()
        await asyncio.gather(*tasks)
    assert worker.contents.index(b"other") <= 2
    assert worker.contents.count(b"flood") == 5


async def test_a_machine_without_memory_for_sockets_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    content = encoded(Image.new("RGB", (4, 4), "red"))

    def fail(self: object, data: bytes) -> None:
        raise OSError(12, "Cannot allocate memory")

    with closing(PictureDecoder()) as decoder:
        with monkeypatch.context() as patch:
            patch.setattr("multiprocessing.connection.Connection.send_bytes", fail)
            with pytest.raises(QueueFull, match="too busy"):
                await decode(decoder, content)
        assert (await decode(decoder, content))[0, 0].tolist() == RED
