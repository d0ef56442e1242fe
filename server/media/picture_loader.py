"""From the pictures of a request to their pixels: bytes from where they are, decoded in another process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

import orjson

from engine.interface.regular_file import open_regular
from server.media.decoded_picture import DecodedPicture, PictureTile
from server.media.picture import Picture
from server.media.picture_decoder import DecodedTiles, PictureDecoder, UndecodablePicture
from server.media.picture_download import DownloadRefused, download
from server.media.picture_format import SWITCHES, PictureFormat
from server.media.tiling import Sizing
from server.media.video import Video
from server.protocol.errors import RETRY_AFTER_S, SERVER_ERROR, ApiError, invalid_value, shorten

MAX_BYTES = 20 << 20  # of a picture from a file or from another host


class PictureLoader:
    """Loads pictures from where the operator allows it."""

    def __init__(self, allowed_hosts: Sequence[str], allowed_path: str | None) -> None:
        """
        Args:
            allowed_hosts: names and literal addresses of hosts from which pictures are downloaded.
            allowed_path: a folder whose files may be read; None: no file may be.
        """
        self._hosts = frozenset(host.lower() for host in allowed_hosts)
        self._folder = None if allowed_path is None else Path(allowed_path)
        self._decoder = PictureDecoder()

    async def load(self, pictures: Sequence[Picture], form: PictureFormat) -> dict[Picture, DecodedPicture]:
        """Pictures as a model takes them.

        Raises:
            ApiError: refuses `mm_processor_kwargs`, or names the first picture that is not allowed, cannot be found or
                cannot be decoded, or for which the server lacks memory.
            QueueFull: the machine is too busy.
        """
        loaded: dict[Picture, DecodedPicture] = {}
        # The same picture may stand in several messages.
        decoded: dict[tuple[str, Sizing] | Picture, DecodedPicture] = {}
        tiles: dict[bytes, PictureTile] = {}  # pixels of equal ones are held once, however often a request has them
        forms = {switches: _switched(form, switches) for switches in {picture.switches for picture in pictures}}
        for picture in pictures:
            own = forms[picture.switches]
            video = picture if isinstance(picture, Video) else None
            key = (picture.url, own.sizing_of(picture.detail)) if video is None else picture
            if key not in decoded:
                found = await (self._load(picture, own) if video is None else self._load_video(video, own))
                shared = tuple(replace(tile, pixels=tiles.setdefault(tile.digest, tile).pixels) for tile in found.tiles)
                decoded[key] = replace(found, tiles=shared)
            if sum(map(form.num_blocks, tiles.values())) > form.most:
                num_tokens = form.most * form.num_tokens
                raise ApiError(
                    f"the pictures of the request fill more than {num_tokens} positions, the limit of this model",
                    param=picture.path,
                    code="too_many_images",
                )
            loaded[picture] = decoded[key]
        return loaded

    def close(self) -> None:
        """Ends the process that decodes."""
        self._decoder.close()

    async def _load(self, picture: Picture, form: PictureFormat) -> DecodedPicture:
        tiles = await self._tiles(picture, form.sizing_of(picture.detail))
        try:
            return await asyncio.to_thread(form.decoded, tiles)
        except MemoryError:
            raise _out_of_memory(picture) from None

    async def _load_video(self, video: Video, form: PictureFormat) -> DecodedPicture:
        if not form.takes_videos:
            raise ApiError(
                f"{video.path} is a video, and this model sees pictures alone",
                param=video.path,
                code="video_not_supported",
            )
        sizing = form.frame_sizing(len(video.frames))
        frames = [await self._tiles(frame, sizing) for frame in video.pictures]
        try:
            return await asyncio.to_thread(form.decoded_video, frames, video)
        except ValueError as error:
            raise ApiError(f"the video {video.path} {error}", param=video.path, code="invalid_video") from None
        except MemoryError:
            raise _out_of_memory(video) from None

    async def _tiles(self, picture: Picture, sizing: Sizing) -> DecodedTiles:
        try:
            content, is_base64 = await self._content(picture)
            return await self._decoder.decode(content, sizing, is_base64=is_base64)
        except UndecodablePicture as error:
            raise _refused(picture, str(error)) from None
        except MemoryError:
            raise _out_of_memory(picture) from None

    async def _content(self, picture: Picture) -> tuple[bytes, bool]:
        """The bytes of a picture, and whether they are in base64."""
        scheme, colon, rest = picture.url.partition(":")
        match scheme.lower() if colon else "":
            case "data":
                head, comma, data = rest.partition(",")
                if not comma or not head.lower().endswith("base64") or not data.isascii():
                    raise _refused(picture, "is no data URL with base64, such as data:image/png;base64,…")
                return data.encode(), True
            case "http" | "https":
                return await self._download(picture), False
            case "file":
                return await asyncio.to_thread(self._read_file, picture), False
        raise _refused(picture, f"is {shorten(picture.url)}, which is no data URL")

    async def _download(self, picture: Picture) -> bytes:
        try:
            return await download(picture.url, self._hosts, MAX_BYTES)
        except DownloadRefused as error:
            raise _refused(picture, str(error)) from None

    def _read_file(self, picture: Picture) -> bytes:
        if self._folder is None:
            raise _refused(picture, "is a file, and this server reads none; --allowed-media-path names a folder")
        unfound = _refused(picture, "is no file that can be read in the folder of --allowed-media-path")
        try:
            parts, folder = urlsplit(picture.url), self._folder.resolve()
            # llama.cpp's clients name a file of the folder by its relative path, whose first part stands as a host.
            name = unquote(parts.path if parts.netloc == "localhost" else parts.netloc + parts.path)
            path = (folder / name).resolve()
            if not path.is_relative_to(folder):
                path = (folder / name.lstrip("/")).resolve()
            if not path.is_relative_to(folder):
                raise unfound
            with open_regular(path) as file:
                content: bytes = file.read(MAX_BYTES + 1)
        except (OSError, ValueError, RuntimeError):  # RuntimeError: before Python 3.13, links in a circle
            raise unfound from None
        if len(content) > MAX_BYTES:
            raise _refused(picture, f"has more than {MAX_BYTES} bytes, the limit")
        return content


def _switched(form: PictureFormat, switches: str) -> PictureFormat:
    try:
        return form.with_switches(orjson.loads(switches)) if switches else form
    except ValueError as error:
        raise invalid_value(str(error), SWITCHES) from None


def _refused(picture: Picture, reason: str) -> ApiError:
    return ApiError(f"the picture {picture.path} {reason}", param=picture.path, code="invalid_image")


def _out_of_memory(picture: Picture) -> ApiError:
    return ApiError(
        f"the server lacks memory for the picture {picture.path}; try again later",
        status=503,
        error_type=SERVER_ERROR,
        param=picture.path,
        code="out_of_memory",
        headers={"Retry-After": str(RETRY_AFTER_S)},
    )
