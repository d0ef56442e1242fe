"""Pictures and videos in the content of a chat's message: what a client sends, read and checked."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from server.media.picture import Picture
from server.media.video import MAX_FRAMES, MAX_FRAMES_A_SECOND, MAX_SECONDS, MIN_FRAMES_A_SECOND, Video
from server.protocol.base_models import StrictModel, bounded
from server.protocol.errors import shorten

DETAILS = ("auto", "low", "high", "original")  # of a picture
_PICTURE, _VIDEO_URL, _VIDEO = "image_url", "video_url", "video"
_FRAMES_TYPE = "data:video/jpeg;base64,"  # of vLLM's form, in which the frames stand one behind the other
_FRAME_TYPE = "data:image/jpeg;base64,"
_RATE, _TIMES = "fps", "timestamps"
_KINDS = ("text", _PICTURE, _VIDEO_URL, "file")  # types that are known by the name of what a part has


Timestamps: TypeAlias = Annotated[list[float], Field(fail_fast=True), bounded(_TIMES, MAX_FRAMES)]


class ImageUrl(StrictModel):
    """The address of a picture: a data URL, or what the server's operator allows."""

    url: str
    detail: Literal["auto", "low", "high", "original"] | None = None


class ImagePart(StrictModel):
    """A picture in a message's content."""

    type: Literal["image_url"]
    image_url: ImageUrl | str


class VideoUrl(StrictModel):
    """A video as a data URL of its frames: `data:video/jpeg;base64,` and JPEG files in base64 with commas between."""

    url: str
    fps: float | None = None


class VideoUrlPart(StrictModel):
    """A video in a message's content, in vLLM's form."""

    type: Literal["video_url"]
    video_url: VideoUrl | str
    fps: float | None = None
    timestamps: Timestamps | None = None


class VideoPart(StrictModel):
    """A video in a message's content, as the list of its frames, each a data URL or what the operator allows."""

    type: Literal["video"]
    video: Annotated[list[ImageUrl | str], Field(fail_fast=True), bounded(_VIDEO, MAX_FRAMES)]
    fps: float | None = None
    timestamps: Timestamps | None = None


def reader_of(part: Any) -> Callable[[dict[str, Any], str], Picture] | None:
    """What reads a part of a content with its path; None where it is no picture and no video."""
    kind = part.get("type") if isinstance(part, dict) else None
    return _READERS.get(kind) if isinstance(kind, str) else None


def as_known_part(part: Any) -> Any:
    """A part of a content as this API has it, if it has the form that another one gives it, or no type at all."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, dict):
        return part
    kind = part.get("type") or next((kind for kind in _KINDS if kind in part), None)
    text = part.get("text")
    if kind == "text" and isinstance(text, dict) and isinstance(text.get("value"), str):  # of assistants' threads
        return {"type": kind, "text": text["value"]}
    if kind == "file" and isinstance(part.get(kind), dict):
        text = text_of_file(part[kind])
        return part if text is None else {"type": "text", "text": text}
    return part if "type" in part or kind is None else {"type": kind, **part}


def text_of_file(file: Mapping[str, Any]) -> str | None:
    """The name and the text of a file that has nothing but text; None of any other."""
    data = file.get("file_data")
    if not isinstance(data, str):
        return None
    try:
        text = base64.b64decode(data.partition(",")[2] if data.startswith("data:") else data, validate=True).decode()
    except ValueError:
        return None
    if "\0" in text or text.startswith("%PDF"):
        return None
    name = file.get("filename")
    return f"{name}:\n{text}" if isinstance(name, str) else text


def _read_picture(part: dict[str, Any], path: str) -> Picture:
    url, detail = _address(part.get(_PICTURE), f"{path}.{_PICTURE}")
    if detail not in (None, *DETAILS):
        raise ValueError(f"{path} has the detail {shorten(detail)}; it must be one of {', '.join(DETAILS)}")
    return Picture(path, _PICTURE, url, detail or "auto")


def _read_input_image(part: dict[str, Any], path: str) -> Picture:
    """As Responses have it, which vLLM takes in chats too."""
    given = part.get(_PICTURE)
    url, detail = _address(given, f"{path}.{_PICTURE}")
    return _read_picture({_PICTURE: {"url": url, "detail": detail or part.get("detail")}}, path)


def _read_image(part: dict[str, Any], path: str) -> Picture:
    """As Anthropic's API has it, MCP, LangChain, or the processors of transformers."""
    source = part.get("source", part)
    found = source if isinstance(source, dict) else {}
    data = next((found[name] for name in ("data", "base64") if isinstance(found.get(name), str)), None)
    url = next((found[name] for name in ("url", "image") if isinstance(found.get(name), str)), None)
    if data is not None:
        types = (found.get(name) for name in ("media_type", "mimeType", "mime_type"))
        url = f"data:{next((kind for kind in types if isinstance(kind, str)), '')};base64,{data}"
    if url is None:
        raise ValueError(
            f'{path} is {shorten(part)}; a picture must look like {{"type":"image_url","image_url":{{"url":"data:…"}}}}'
        )
    return Picture(path, "image", url)


def _read_video_url(part: dict[str, Any], path: str) -> Video:
    given = part.get(_VIDEO_URL)
    url = given.get("url") if isinstance(given, dict) else given
    if not isinstance(url, str) or not url[: len(_FRAMES_TYPE)].lower() == _FRAMES_TYPE:
        raise ValueError(
            f"{path}.{_VIDEO_URL} is {shorten(given)}; a video is sent as its frames, "
            f'{{"url":"{_FRAMES_TYPE}<JPEG in base64>,<JPEG in base64>,…"}}'
        )
    most = MAX_FRAMES + 1  # one more is refused by its number
    frames = url[len(_FRAMES_TYPE) :].split(",", most)[:most]
    rates = [given.get(_RATE)] if isinstance(given, dict) else []
    return _video(part, path, _VIDEO_URL, [_FRAME_TYPE + frame for frame in frames], rates)


def _read_video(part: dict[str, Any], path: str) -> Video:
    given = part.get(_VIDEO)
    if not isinstance(given, list) or not given:
        raise ValueError(
            f'{path}.{_VIDEO} is {shorten(given)}; it must be the list of its frames, ["data:image/jpeg;base64,…", …]'
        )
    frames = [_address(frame, f"{path}.{_VIDEO}[{at}]")[0] for at, frame in enumerate(given[: MAX_FRAMES + 1])]
    return _video(part, path, _VIDEO, frames, [])


def _video(part: Mapping[str, Any], path: str, kind: str, frames: list[str], rates: list[Any]) -> Video:
    if len(frames) > MAX_FRAMES:
        raise ValueError(f"{path}.{kind} has more than {MAX_FRAMES} frames, the limit of a request")
    rate = next((each for each in [part.get(_RATE), *rates] if each is not None), None)
    if rate is not None and not _is_number(rate, MAX_FRAMES_A_SECOND, least=MIN_FRAMES_A_SECOND):
        raise ValueError(
            f"{path}.{_RATE} is {shorten(rate)}; it must be a number from {MIN_FRAMES_A_SECOND:g} to "
            f"{MAX_FRAMES_A_SECOND:g}"
        )
    times = part.get(_TIMES)
    if times is None:
        return Video(path, kind, "", frames=tuple(frames), frames_a_second=None if rate is None else float(rate))
    if rate is not None:
        raise ValueError(f"{path} has both {_RATE} and {_TIMES}; give one of them")
    are_numbers = isinstance(times, list) and all(_is_number(each, MAX_SECONDS) for each in times[: len(frames) + 1])
    if not are_numbers or len(times) != len(frames) or sorted(times) != times:
        raise ValueError(
            f"{path}.{_TIMES} is {shorten(times)}; it must be the seconds of its {len(frames)} frames in their order"
        )
    return Video(path, kind, "", frames=tuple(frames), times=tuple(map(float, times)))


def _address(given: Any, path: str) -> tuple[str, Any]:
    """The URL of a picture, and its detail."""
    url, detail = (given.get("url"), given.get("detail")) if isinstance(given, dict) else (given, None)
    if not isinstance(url, str):
        raise ValueError(f'{path} is {shorten(given)}; it must look like {{"url":"data:image/png;base64,…"}}')
    return url, detail


def _is_number(value: Any, most: float, *, least: float = 0.0) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


_READERS: Mapping[str, Callable[[dict[str, Any], str], Picture]] = {
    _PICTURE: _read_picture,
    "input_image": _read_input_image,
    "image": _read_image,
    _VIDEO_URL: _read_video_url,
    _VIDEO: _read_video,
}
