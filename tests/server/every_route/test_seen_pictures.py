"""Pictures on their way to an engine that sees, through every API."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from server.media.decoded_picture import DecodedPicture
from server.media.families.idefics3_pictures import Idefics3Pictures
from server.media.families.pixtral_pictures import PixtralPictures
from server.media.picture_format import PictureFormat
from server.media.tiling import LongestEdge, Tiling
from tests.fakes.seeing_text_model import FORM, SeeingTextModel
from tests.server.conftest import RunningServer, StartServer


def url_of(colour: str) -> str:
    file = io.BytesIO()
    Image.new("RGB", (9, 9), colour).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


RED, BLUE, GREEN = map(url_of, ("red", "blue", "lime"))


@pytest.fixture
async def seeing(start_server: StartServer) -> RunningServer:
    return await start_server(text_model=SeeingTextModel())


def parts(*given: str) -> list[dict[str, Any]]:
    """Parts of a chat's content: addresses and texts."""
    return [
        {"type": "image_url", "image_url": {"url": each}} if ":" in each else {"type": "text", "text": each}
        for each in given
    ]


def seen(server: RunningServer) -> list[tuple[int, list[int]]]:
    """The starts and the colours of the pictures of the last request."""
    found = []
    for picture in server.engine.pictures:
        assert picture.pixels.shape == (4, 6, 3)
        assert picture.num_tokens == 3
        found.append((picture.start, picture.pixels[0, 0].tolist()))
    return found


async def test_pictures_reach_the_engine_at_their_positions(seeing: RunningServer) -> None:
    body = {"messages": [{"role": "user", "content": parts("a", RED, "b", BLUE, RED)}], "max_tokens": 4}
    status, answer = await seeing.post("/v1/chat/completions", body)
    assert status == 200
    assert seen(seeing) == [(7, [255, 0, 0]), (13, [0, 0, 255]), (18, [255, 0, 0])]
    first, _, third = seeing.engine.pictures
    assert first.digest == third.digest
    prompt = "user:a[\1\1\1]b[\1\1\1][\1\1\1]\nassistant:"
    assert answer["usage"]["prompt_tokens"] == len(prompt)
    assert answer["usage"]["prompt_tokens_details"]["image_tokens"] == 9
    _, told = await seeing.post("/tokenize", {"messages": body["messages"]})
    assert bytes(told["tokens"]).decode() == prompt


@pytest.mark.parametrize(
    ("route", "body"),
    [
        (
            "/v1/responses",
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": RED}]}]},
        ),
        (
            "/v1/messages",
            {
                "max_tokens": 4,
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "image",
                                "source": {
                                    "type": "base64", "media_type": "image/png", "data": RED.partition(",")[2],
                                },
                            }
                        ],
                    }
                ],
            },
        ),
        ("/api/generate", {"stream": False, "prompt": "a", "images": [RED.partition(",")[2]]}),
    ],
)  # fmt: skip
async def test_every_api_brings_pictures(seeing: RunningServer, route: str, body: dict[str, Any]) -> None:
    async with seeing.http.post(seeing.url + route, json={"model": "fake", **body}) as response:
        assert response.status == 200, await response.text()
        assert "X-Eagre-Ignored" not in response.headers
    assert seen(seeing) == [(6, [255, 0, 0])]


RED_DATA = RED.partition(",")[2]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_image", "image_url": RED, "detail": "high"},
        {"type": "input_image", "image_url": {"url": RED}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": RED_DATA}},
        {"type": "image", "mimeType": "image/png", "data": RED_DATA},
        {"type": "image", "mime_type": "image/png", "base64": RED_DATA},
        {"type": "image", "image": RED},
        {"type": "image", "url": RED},
        {"type": "image_url", "image_url": RED.replace("+", "%2B").replace("=", "%3D")},
    ],
    ids=["responses", "responses object", "anthropic", "mcp", "langchain", "transformers", "url", "percent"],
)
async def test_chats_take_pictures_as_others_send_them(seeing: RunningServer, part: dict[str, Any]) -> None:
    status, answer = await seeing.post(
        "/v1/chat/completions", {"messages": [{"role": "user", "content": [part]}], "max_tokens": 4}
    )
    assert status == 200, answer
    assert seen(seeing) == [(6, [255, 0, 0])]


async def test_responses_take_a_picture_as_chats_send_it(seeing: RunningServer) -> None:
    part = {"type": "input_image", "image_url": {"url": RED, "detail": "low"}}
    body = {"model": "fake", "input": [{"role": "user", "content": [part]}]}
    async with seeing.http.post(seeing.url + "/v1/responses", json=body) as response:
        assert response.status == 200, await response.text()
        assert "X-Eagre-Ignored" not in response.headers
    assert seen(seeing) == [(6, [255, 0, 0])]


async def test_a_raw_prompt_has_pictures_at_its_marks(seeing: RunningServer) -> None:
    _, props = await seeing.get("/props")
    mark, data = props["media_marker"], [url.partition(",")[2] for url in (RED, BLUE)]
    shown = {"prompt_string": f"a{mark}b{mark}", "multimodal_data": data}
    in_parts = {"content": parts("a", RED, "b", BLUE)}
    for prompt in (shown, in_parts, [shown, "c"]):
        status, answer = await seeing.post("/completion", {"prompt": prompt, "n_predict": 3})
        assert status == 200, answer
        if prompt is not shown and prompt is not in_parts:
            continue  # the last submitted prompt is a text
        assert seen(seeing) == [(2, [255, 0, 0]), (8, [0, 0, 255])]
        assert bytes(seeing.engine.submitted[-1].prompt_token_ids).decode() == "a[\1\1\1]b[\1\1\1]"


async def test_a_raw_prompt_has_a_mark_for_each_picture(seeing: RunningServer, server: RunningServer) -> None:
    data = RED.partition(",")[2]
    for text, given in (("a", [data]), ("<__media__>", []), ("<__media__>", [data, data]), ("<__media__>", ["%"])):
        prompt = {"prompt_string": text, "multimodal_data": given}
        status, answer = await seeing.post("/completion", {"prompt": prompt})
        assert (status, answer["error"]["param"].partition(".")[0]) == (400, "prompt"), (text, given)
    prompt = {"prompt_string": "<__media__>", "multimodal_data": [data]}
    status, answer = await server.post("/completion", {"prompt": [prompt]})
    assert (status, answer["error"]["param"]) == (400, "prompt[0].multimodal_data[0]")
    assert "reads text alone" in answer["error"]["message"]


async def test_a_picture_of_a_tool_is_seen(seeing: RunningServer) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output = [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": RED}]
    result = {"type": "function_call_output", "call_id": "c", "output": output}
    _, first = await seeing.post("/v1/responses", {"input": [call, result]})
    assert [colour for _, colour in seen(seeing)] == [[255, 0, 0]]
    await seeing.post("/v1/responses", {"input": "b", "previous_response_id": first["id"]})
    assert [colour for _, colour in seen(seeing)] == [[255, 0, 0]]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("data:image/png;base64,AAAA", "is damaged, or not a PNG"),
        ("data:image/png;base64,", "is empty"),
        ("data:image/png;base64,%%%%", "is not base64"),
        ("data:image/png,AAAA", "no data URL with base64"),
        ("ftp://a/b.png", "which is no data URL"),
        ("file:///etc/passwd", "--allowed-media-path names a folder"),
        ("http://127.0.0.1:1/a.png", "which --allowed-media-hosts does not name"),
        ("https://[::1/a.png", "invalid address"),
    ],
)
async def test_a_picture_that_cannot_be_read_is_refused_by_its_path(
    seeing: RunningServer, url: str, words: str
) -> None:
    status, answer = await seeing.post(
        "/v1/chat/completions", {"messages": [{"role": "user", "content": parts("x", url)}]}
    )
    assert status == 400
    assert (answer["error"]["param"], answer["error"]["code"]) == ("messages[0].content[1]", "invalid_image")
    assert words in answer["error"]["message"]
    assert "messages[0].content[1]" in answer["error"]["message"]


async def test_too_many_different_pictures_are_refused(seeing: RunningServer) -> None:
    content = parts(RED, BLUE, GREEN)
    status, answer = await seeing.post("/v1/chat/completions", {"messages": [{"role": "user", "content": content}]})
    assert (status, answer["error"]["code"]) == (400, "too_many_images")


async def test_a_text_cannot_write_a_place_for_pictures(seeing: RunningServer) -> None:
    body = {"messages": [{"role": "user", "content": parts("<img>", RED)}]}
    status, answer = await seeing.post("/v1/chat/completions", body)
    assert (status, answer["error"]["param"]) == (400, "messages[0].content[1]")
    assert "1 pictures and 2 places" in answer["error"]["message"]
    status, answer = await seeing.post("/v1/completions", {"prompt": [97, 1, 1, 1, 98]})
    assert (status, answer["error"]["param"]) == (400, "prompt")


async def test_a_cut_prompt_has_whole_pictures(seeing: RunningServer) -> None:
    body = {"messages": [{"role": "user", "content": parts("a", RED, "b", BLUE)}], "max_tokens": 4}
    for most, starts in ((28, [7, 13]), (24, [3, 9]), (21, [0, 6]), (20, [3]), (19, [3]), (12, [])):
        status, answer = await seeing.post("/v1/chat/completions", {**body, "truncate_prompt_tokens": most})
        assert status == 200
        assert [start for start, _ in seen(seeing)] == starts, most
        assert answer["usage"]["prompt_tokens"] <= most


async def test_a_prompt_with_pictures_is_not_cut_at_its_end(seeing: RunningServer) -> None:
    body = {"messages": [{"role": "user", "content": parts("a", RED)}], "max_tokens": 4, "truncate_prompt_tokens": 4}
    status, answer = await seeing.post("/v1/chat/completions", {**body, "truncation_side": "right"})
    assert (status, answer["error"]["param"]) == (400, "truncation_side")


RESPONSES_PARTS = [
    {"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": RED}, {"type": "input_text", "text": "b"},
]  # fmt: skip


class CuttingTextModel(SeeingTextModel):
    pictures = Idefics3Pictures(Tiling(4, 4, 2, 8), 3, 16, marker="<img>", token="\x01", token_id=1)


async def test_a_picture_that_is_cut_is_several_to_the_engine(start_server: StartServer) -> None:
    server = await start_server(text_model=CuttingTextModel())
    around, rest = "<fake_token_around_image>", "\1\1\1"
    rows = [f"{around}<row_{at}_col_1>{rest}{around}<row_{at}_col_2>{rest}\n" for at in (1, 2)]
    text = f"user:a{''.join(rows)}\n{around}<global-img>{rest}{around}b\nassistant:"
    body = {"messages": [{"role": "user", "content": parts("a", RED, "b")}], "max_tokens": 4}
    status, answer = await server.post("/v1/chat/completions", body)
    assert (status, answer["usage"]["prompt_tokens"]) == (200, len(text))
    assert answer["usage"]["prompt_tokens_details"]["image_tokens"] == 15
    assert [picture.start for picture in server.engine.pictures] == [
        at for at in range(len(text)) if text[at : at + 3] == rest
    ]
    assert [picture.num_tokens for picture in server.engine.pictures] == [3] * 5
    for route in ("/v1/chat/completions/input_tokens", "/v1/responses/input_tokens"):
        asked = {"input": [{"role": "user", "content": RESPONSES_PARTS}]} if "responses" in route else body
        _, counted = await server.post(route, asked)
        assert counted["input_tokens"] == len(text)
    _, shown = await server.post("/apply-template", body)
    assert shown["prompt"] == text
    _, rendered = await server.post("/v1/chat/completions/render", body)
    assert bytes(rendered["token_ids"]).decode() == text
    for most in (len(text) - len(text.partition(rest)[0]) - 1, 40):  # within a tile, and behind the first ones
        await server.post("/v1/chat/completions", {**body, "truncate_prompt_tokens": most})
        assert server.engine.pictures == ()


class RowEndsTextModel(SeeingTextModel):
    pictures = PixtralPictures(
        LongestEdge(4, 8, 2), 4, 16, marker="<img>", token="\x01", token_id=1, patch_size=2,
        row_end="\x02", picture_end="\x03",
    )  # fmt: skip


async def test_rows_of_a_picture_have_ends(start_server: StartServer) -> None:
    server = await start_server(text_model=RowEndsTextModel())
    text = "user:a\1\1\2\1\1\3\1\1\2\1\1\3b\nassistant:"
    body = {"messages": [{"role": "user", "content": parts("a", RED, BLUE, "b")}], "max_tokens": 4}
    status, answer = await server.post("/v1/chat/completions", body)
    assert (status, answer["usage"]["prompt_tokens"]) == (200, len(text))
    assert answer["usage"]["prompt_tokens_details"]["image_tokens"] == 8
    assert [(each.start, each.end, list(each.positions)) for each in server.engine.pictures] == [
        (6, 12, [6, 7, 9, 10]),
        (12, 18, [12, 13, 15, 16]),
    ]
    for first, num_left in ((6, 2), (7, 1), (11, 1), (12, 1), (17, 0)):  # before pictures and within them
        await server.post("/v1/chat/completions", {**body, "truncate_prompt_tokens": len(text) - first})
        assert len(server.engine.pictures) == num_left


async def test_low_detail_is_one_tile(start_server: StartServer) -> None:
    server = await start_server(text_model=CuttingTextModel())
    low = {"type": "image_url", "image_url": {"url": RED, "detail": "low"}}
    content = [low, *parts(RED)]
    status, _ = await server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": content}]})
    assert status == 200
    assert len(server.engine.pictures) == 1 + 5


async def test_settings_of_the_image_processor_are_those_of_the_request(start_server: StartServer) -> None:
    server = await start_server(text_model=CuttingTextModel())
    chat = {"messages": [{"role": "user", "content": parts("a", RED)}], "max_tokens": 4}
    responses = {"input": [{"role": "user", "content": RESPONSES_PARTS[:2]}]}
    lengths = []
    for switches, num_tiles in ((None, 5), ({}, 5), ({"do_image_splitting": False}, 1)):
        more = {"mm_processor_kwargs": switches}
        for route, body in (("/v1/chat/completions", chat), ("/v1/responses", responses)):
            status, answer = await server.post(route, {**body, **more})
            assert status == 200, answer
            assert len(server.engine.pictures) == num_tiles
        _, counted = await server.post("/v1/responses/input_tokens", {**responses, **more})
        _, tokenized = await server.post("/tokenize", {"messages": chat["messages"], **more})
        _, counted_too = await server.post("/v1/chat/completions/input_tokens", {**chat, **more})
        assert counted["input_tokens"] == tokenized["count"] == counted_too["input_tokens"]
        lengths.append(tokenized["count"])
    assert lengths[0] == lengths[1] > lengths[2]


@pytest.mark.parametrize(
    ("switches", "words"),
    [
        ({"do_pan_and_scan": True}, 'has the name "do_pan_and_scan", which the image processor of this model'),
        ({"do_image_splitting": 1}, "mm_processor_kwargs.do_image_splitting is 1; it must be true or false"),
        ({"size": {"longest_edge": 65}}, "size.longest_edge is 65; it must be an integer from 1 to 64"),
        ([], "mm_processor_kwargs is []; it must be an object"),
        ({"size": "x" * 4096}, "bytes as JSON; at most 4096 are allowed"),
    ],
)
async def test_wrong_settings_of_the_image_processor_are_refused(
    start_server: StartServer, switches: Any, words: str
) -> None:
    server = await start_server(text_model=CuttingTextModel())
    body = {"messages": [{"role": "user", "content": parts("a", RED)}], "mm_processor_kwargs": switches}
    status, answer = await server.post("/v1/chat/completions", body)
    assert (status, answer["error"]["param"]) == (400, "mm_processor_kwargs")
    assert words in answer["error"]["message"]


async def test_files_of_the_allowed_folder_are_read(start_server: StartServer, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for folder in (tmp_path, tmp_path / "in"):
        (folder / "a.png").write_bytes(base64.b64decode(RED.partition(",")[2]))
    (tmp_path / "in" / "link.png").symlink_to(tmp_path / "a.png")
    (tmp_path / "in" / "circle.png").symlink_to("circle.png")
    server = await start_server(text_model=SeeingTextModel(), allowed_media_path=str(tmp_path / "in"))

    async def status_of(url: str) -> int:
        body = {"messages": [{"role": "user", "content": parts(url)}]}
        return (await server.post("/v1/chat/completions", body))[0]

    (tmp_path / "in" / "sub").mkdir()
    (tmp_path / "in" / "sub" / "b.png").write_bytes((tmp_path / "in" / "a.png").read_bytes())
    for address in (f"{tmp_path}/in/a.png", f"localhost{tmp_path}/in/a.png", "a.png", "sub/b.png", "//sub//b.png"):
        assert await status_of(f"file://{address}") == 200
    for address in ("../a.png", "sub/../../a.png", "%2e%2e/a.png", "none/b.png"):
        assert await status_of(f"file://{address}") == 400
    for path in (f"{tmp_path}/a.png", f"{tmp_path}/in/../a.png", f"{tmp_path}/in/link.png", f"{tmp_path}/in", "/none"):
        assert await status_of(f"file://{path}") == 400
    for url in (f"file://{tmp_path}/in/circle.png", "file://[/a.png", "file:///a%00.png"):
        assert await status_of(url) == 400


async def test_pictures_of_allowed_hosts_are_downloaded(start_server: StartServer, tmp_path: Path) -> None:
    holder = await start_server()  # it answers with no picture
    literal = await start_server(text_model=SeeingTextModel(), allowed_media_hosts=("127.0.0.1", "localhost"))
    port = holder.url.rpartition(":")[2]

    async def refusal(host: str, path: str) -> str:
        body = {"messages": [{"role": "user", "content": parts(f"http://{host}:{port}{path}")}]}
        status, answer = await literal.post("/v1/chat/completions", body)
        assert status == 400
        return str(answer["error"]["message"])

    assert "is damaged, or not a PNG" in await refusal("127.0.0.1", "/liveness")
    assert "the status 404" in await refusal("127.0.0.1", "/none")
    assert "private address" in await refusal("localhost", "/liveness")


async def test_a_server_without_memory_for_a_picture_says_so(
    seeing: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: PictureFormat, tiles: object) -> DecodedPicture:
        raise MemoryError

    body = {"messages": [{"role": "user", "content": parts("x", RED)}], "max_tokens": 1}
    with monkeypatch.context() as patch:
        patch.setattr(PictureFormat, "decoded", fail)
        status, answer = await seeing.post("/v1/chat/completions", body)
    assert (status, answer["error"]["code"]) == (503, "out_of_memory")
    assert answer["error"]["param"] == "messages[0].content[1]"
    assert "lacks memory for the picture messages[0].content[1]" in answer["error"]["message"]
    assert (await seeing.post("/v1/chat/completions", body))[0] == 200


def test_the_text_of_a_picture() -> None:
    assert FORM.text(0, 0) == "[\1\1\1]"


async def test_what_the_model_reads_is_told_to_every_client(seeing: RunningServer) -> None:
    _, listed = await seeing.get("/v1/models")
    (model,), (codex,) = listed["data"], listed["models"]
    assert model["modalities"] == codex["input_modalities"] == ["text", "image"]
    assert (model["image_tokens"], model["max_images"], model["encoder_bytes"]) == (3, 2, 0)
    assert (await seeing.get("/props"))[1]["modalities"]["vision"] is True
    assert "vision" in (await seeing.post("/api/show", {"model": "fake"}))[1]["capabilities"]


async def test_a_model_of_text_has_no_figures_of_pictures(server: RunningServer) -> None:
    _, listed = await server.get("/v1/models")
    assert not {"image_tokens", "max_images", "encoder_bytes"} & listed["data"][0].keys()
    assert listed["models"][0]["input_modalities"] == ["text"]
    assert (await server.get("/props"))[1]["modalities"]["vision"] is False
    assert "vision" not in (await server.post("/api/show", {"model": "fake"}))[1]["capabilities"]
