"""Pictures in the messages of a Python program."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from sampling.host.params import InvalidParameter
from server.offline.pictures import picture_on_the_wire
from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.seeing_text_model import SeeingTextModel
from tests.server.offline.conftest import MakeLLM

RED = Image.new("RGB", (9, 9), "red")


def bytes_of(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def messages_of(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "What?"}]}]


def test_a_path_bytes_or_a_pil_image_stand_where_an_address_stands(make_llm: MakeLLM, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(bytes_of(RED))
    engine = FakeEngineClient()
    llm = make_llm(engine, SeeingTextModel())
    for picture in (path, str(path), path.read_bytes(), bytearray(path.read_bytes()), RED):
        for part in (
            {"type": "image", "image": picture},
            {"type": "image_url", "image_url": picture},
            {"type": "image_url", "image_url": {"url": picture, "detail": "low"}},
        ):
            llm.chat(messages_of(part), max_tokens=1)
            (seen,) = engine.pictures
            assert seen.pixels[0, 0].tolist() == [255, 0, 0]
            engine.pictures = ()
    for _ in llm.stream_chat(messages_of({"type": "image", "image": RED}), max_tokens=1):
        assert len(engine.pictures) == 1
    with_picture, alone = (llm.count_tokens(messages_of(*parts)) for parts in ([{"type": "image", "image": RED}], []))
    assert with_picture == alone + len("[]") + SeeingTextModel.pictures.num_tokens


def test_a_picture_that_cannot_be_read_is_refused(make_llm: MakeLLM, tmp_path: Path) -> None:
    llm = make_llm(FakeEngineClient(), SeeingTextModel())
    for picture, words in ((tmp_path / "none.png", "cannot be read"), (b"x", "messages[0].content[0] is damaged")):
        with pytest.raises(InvalidParameter) as refused:
            llm.chat(messages_of({"type": "image", "image": picture}))
        assert words in str(refused.value)


def test_a_model_that_reads_text_alone_refuses_them(make_llm: MakeLLM) -> None:
    with pytest.raises(InvalidParameter, match="reads text alone"):
        make_llm(FakeEngineClient()).chat(messages_of({"type": "image", "image": RED}))


def test_settings_of_the_image_processor_are_checked(make_llm: MakeLLM) -> None:
    llm = make_llm(FakeEngineClient(), SeeingTextModel())
    for switches, words in (({"a": 1}, 'has the name "a"'), ({"a": 1 << 70}, "cannot be written as JSON")):
        with pytest.raises(InvalidParameter, match=words) as refused:
            llm.chat(messages_of({"type": "image", "image": RED}), mm_processor_kwargs=switches)
        assert refused.value.param == "mm_processor_kwargs"


def test_frames_of_a_video_may_be_paths_and_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"first")
    part = {"type": "video", "video": [tmp_path / "a.png", b"second", "data:;base64,dGhpcmQ="], "fps": 2}
    made = picture_on_the_wire(part)
    assert made["fps"] == 2
    assert [base64.b64decode(frame.partition(",")[2]) for frame in made["video"]] == [b"first", b"second", b"third"]
    with pytest.raises(InvalidParameter, match="cannot be read"):
        picture_on_the_wire({"type": "video", "video": [tmp_path / "missing.png"]})
