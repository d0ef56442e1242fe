"""Videos as frames on their way to an engine that sees."""

from __future__ import annotations

import base64
import io
from typing import Any

import pytest
from PIL import Image

from server.api.openai.media_parts import reader_of
from server.media.families.qwen_pictures import QwenPictures
from server.media.tiling import NativeSize
from server.media.video import MAX_FRAMES
from tests.fakes.seeing_text_model import SeeingTextModel
from tests.fakes.text_model import FakeTextModel
from tests.server.conftest import StartServer

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}\1{% elif part.type == 'video' %}\2{% else %}"
    "{{ part.text }}{% endif %}{% endfor %}{% endif %}{{ '\n' }}{% endfor %}assistant:"
)


class WatchingTextModel(FakeTextModel):
    """Takes squares of 4 pixels as a token, and two frames as a picture."""

    pictures = QwenPictures(
        NativeSize(4, 16, 64, 2), 4, 16, marker="\1", token="\1", token_id=1, patch_size=2, video_token="\2",
        video_token_id=2, video_pixels=(16, 64), tokens_a_second=4,
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__(TEMPLATE)


def frame(colour: str, kind: str = "JPEG", size: tuple[int, int] = (8, 4)) -> str:
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, kind)
    return base64.b64encode(file.getvalue()).decode()


def data_url(content: str) -> str:
    return f"data:image/jpeg;base64,{content}"


RED, BLUE, LIME = map(frame, ("red", "blue", "lime"))


def body(part: dict[str, Any]) -> dict[str, Any]:
    content = [{"type": "text", "text": "a"}, part, {"type": "text", "text": "b"}]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 4}


@pytest.mark.parametrize(
    "part",
    [
        {"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{RED},{BLUE},{LIME}", "fps": 4}},
        {"type": "video_url", "video_url": f"data:video/jpeg;base64,{RED},{BLUE},{LIME}", "fps": 4},
        {"type": "video", "video": [data_url(RED), {"url": data_url(BLUE)}, data_url(LIME)], "fps": 4.0},
        {"type": "video", "video": [*map(data_url, (RED, BLUE, LIME))], "timestamps": [1, 1.25, 1.5]},
    ],
)
async def test_frames_reach_the_engine_in_pairs(part: dict[str, Any], start_server: StartServer) -> None:
    server = await start_server(text_model=WatchingTextModel())
    status, answer = await server.post("/v1/chat/completions", body(part))
    assert status == 200, answer
    assert answer["usage"]["prompt_tokens"] == len("user:a\2\2\2\2b\nassistant:")
    assert answer["usage"]["prompt_tokens_details"]["image_tokens"] == 4
    first, second = server.engine.pictures
    assert [(each.start, each.num_tokens, each.grid, each.time) for each in (first, second)] == [
        (6, 2, (1, 2), None), (8, 2, (1, 2), 2),
    ]  # fmt: skip
    assert first.pixels.shape == (8, 2, 2, 2, 3)
    assert first.pixels[0, 0, 0, 0].argmax() == 0
    assert first.pixels[0, 1, 0, 0].argmax() == 2
    assert (second.pixels[:, 0] == second.pixels[:, 1]).all()  # the last frame stands twice


async def test_a_rate_of_the_whole_request(start_server: StartServer) -> None:
    server = await start_server(text_model=WatchingTextModel())
    part = {"type": "video", "video": [*map(data_url, (RED, BLUE, LIME))]}
    status, _ = await server.post("/v1/chat/completions", {**body(part), "mm_processor_kwargs": {"fps": 1}})
    assert (status, server.engine.pictures[1].time) == (200, 8)


async def test_a_video_in_which_nothing_moves_goes_on_in_time(start_server: StartServer) -> None:
    server = await start_server(text_model=WatchingTextModel())
    status, _ = await server.post("/v1/chat/completions", body({"type": "video", "video": [data_url(RED)] * 6}))
    assert (status, [each.time for each in server.engine.pictures]) == (200, [None, 4, 8])
    assert len({id(each.pixels) for each in server.engine.pictures}) == 1


async def test_a_rate_beyond_which_positions_have_no_numbers_is_refused(start_server: StartServer) -> None:
    """The engine would fail over them, with all its streams."""
    server = await start_server(text_model=WatchingTextModel())
    part = {"type": "video", "video": [data_url(RED)] * 3}
    for rate in (1e-300, 1e-9, 0, True):
        status, answer = await server.post("/v1/chat/completions", {**body(part), "mm_processor_kwargs": {"fps": rate}})
        assert (status, "fps" in answer["error"]["message"]) == (400, True)
        status, answer = await server.post("/v1/chat/completions", body({**part, "fps": rate}))
        assert (status, "fps" in answer["error"]["message"]) == (400, True)
    status, _ = await server.post("/v1/chat/completions", {**body(part), "mm_processor_kwargs": {"fps": 1e-6}})
    assert (status, server.engine.pictures[1].time) == (200, 8_000_000)


@pytest.mark.parametrize("values", [{"fps": 10**400}, {"timestamps": [10**400]}])
def test_numbers_that_no_float_holds_are_refused(values: dict[str, Any]) -> None:
    part = {"type": "video", "video": [data_url(RED)], **values}
    read = reader_of(part)
    assert read is not None
    with pytest.raises(ValueError, match=next(iter(values))):
        read(part, "content[1]")


@pytest.mark.parametrize(
    ("part", "param", "words"),
    [
        ({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AA"}}, "messages", "is sent as its frames"),
        ({"type": "video_url"}, "messages", "content[1].video_url"),
        ({"type": "video", "video": []}, "messages", "content[1].video"),
        ({"type": "video", "video": [3]}, "messages", "content[1].video[0]"),
        ({"type": "video", "video": [data_url(RED)] * (MAX_FRAMES + 1)}, "messages", f"more than {MAX_FRAMES} frames"),
        ({"type": "video", "video": [data_url(RED)], "fps": 0}, "messages", "content[1].fps"),
        ({"type": "video", "video": [data_url(RED)], "fps": True}, "messages", "content[1].fps"),
        ({"type": "video", "video": [data_url(RED)], "timestamps": [0, 1]}, "messages", "content[1].timestamps"),
        ({"type": "video", "video": [data_url(RED)] * 2, "timestamps": [1, 0]}, "messages", "content[1].timestamps"),
        ({"type": "video", "video": [data_url(RED)], "fps": 1, "timestamps": [0]}, "messages", "give one of them"),
        (
            {"type": "video", "video": [data_url(RED), "data:image/png;base64,AAAA"]},
            "messages[0].content[1].video[1]", "messages[0].content[1].video[1] is damaged",
        ),
        (
            {"type": "video_url", "video_url": f"data:video/jpeg;base64,{RED},"},
            "messages[0].content[1].video_url[1]", "is empty",
        ),
        (
            {"type": "video", "video": [data_url(RED), data_url(frame("red", size=(4, 8)))]},
            "messages[0].content[1]", "frames of different shapes",
        ),
        (
            {"type": "video", "video": ["file:///etc/passwd"]},
            "messages[0].content[1].video[0]", "this server reads none",
        ),
    ],
)  # fmt: skip
async def test_refused_by_name(part: dict[str, Any], param: str, words: str, start_server: StartServer) -> None:
    server = await start_server(text_model=WatchingTextModel())
    status, answer = await server.post("/v1/chat/completions", body(part))
    assert status == 400, answer
    assert words in answer["error"]["message"]
    assert answer["error"]["param"].startswith(param)


async def test_the_frames_of_all_videos_count(start_server: StartServer) -> None:
    server = await start_server(text_model=WatchingTextModel())
    part = {"type": "video", "video": [data_url(RED)] * (MAX_FRAMES // 2 + 1)}
    content = {"messages": [{"role": "user", "content": [part, part]}]}
    status, answer = await server.post("/v1/chat/completions", content)
    assert (status, answer["error"]["code"]) == (400, "too_many_frames")
    assert answer["error"]["param"] == "messages[0].content[1]"


async def test_models_that_take_no_videos_say_so(start_server: StartServer) -> None:
    part = {"type": "video", "video": [data_url(RED)]}
    for text_model, code in ((SeeingTextModel(), "video_not_supported"), (None, "image_not_supported")):
        server = await start_server(**({} if text_model is None else {"text_model": text_model}))
        status, answer = await server.post("/v1/chat/completions", body(part))
        assert (status, answer["error"]["code"]) == (400, code)
        assert "messages[0].content[1] is a video" in answer["error"]["message"]
