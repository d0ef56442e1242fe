"""`/image` of `eagre chat`: pictures of files that go with a question."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from server.cli.chat.chat import Chat
from server.cli.chat.commands import HELP, run_command
from server.cli.chat.conversation import Conversation, ConversationError
from server.cli.chat.pictures import MAX_UNCHANGED_BYTES, picture_part
from server.cli.chat.terminal import completions
from server.cli.client.errors import NoAnswer
from server.cli.client.server_client import Piece
from tests.fakes.seeing_text_model import SeeingTextModel
from tests.server.cli.chat.test_chat import FakeAnswers, FakeScreen, chat
from tests.server.conftest import RunningServer, StartServer
from tests.server.every_route.test_seen_pictures import seen


def save(path: Path, colour: str = "red", size: tuple[int, int] = (9, 9), mode: str = "RGB") -> Path:
    Image.new(mode, size, colour if mode == "RGB" else 0).save(path)
    return path


def decoded(part: dict[str, Any]) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(part["image_url"]["url"].partition(",")[2])))


def kinds(body: dict[str, Any]) -> list[Any]:
    """What each message of a body has: a text, or the types of its parts."""
    contents = [message["content"] for message in body["messages"]]
    return [c if isinstance(c, str) else [part.get("text", part["type"]) for part in c] for c in contents]


def test_pictures_go_with_the_next_question_and_stay_in_its_turn(tmp_path: Path) -> None:
    a, b = save(tmp_path / "a.png"), save(tmp_path / "b c.png")
    answers, screen = FakeAnswers(Piece("x")), FakeScreen(f"/image {a}", f"/image {b}", "q", "next", "/undo", "/retry")
    assert Chat(Conversation(), answers, screen).run()
    assert screen.told[:2] == ["a.png goes with the next question", "b c.png goes with the next question, with 1 more"]
    asked = ["image_url", "image_url", "q"]
    assert list(map(kinds, answers.bodies)) == [[asked], [asked, "x", "next"], [asked]]
    assert screen.told[2] == "removed: next"


def test_a_question_that_was_refused_is_sent_again_with_its_pictures(tmp_path: Path) -> None:
    conversation = Conversation()
    answers = FakeAnswers(NoAnswer("no"))
    Chat(conversation, answers, FakeScreen(f"/image {save(tmp_path / 'a.png')}", "q", "/retry", "other")).run()
    assert list(map(kinds, answers.bodies)) == [[["image_url", "q"]], [["image_url", "q"]], ["other"]]


@pytest.mark.parametrize("command", ["/image", "/clear"])
def test_pictures_are_removed_before_they_are_sent(tmp_path: Path, command: str) -> None:
    conversation = Conversation()
    run_command(f"/image {save(tmp_path / 'a.png')}", conversation)
    run_command(command, conversation)
    assert kinds(conversation.begin("q")) == ["q"]


def test_a_conversation_with_pictures_is_saved_and_loaded(tmp_path: Path) -> None:
    conversation, path = Conversation(), tmp_path / "c.json"
    run_command(f"/image {save(tmp_path / 'a.png')}", conversation)
    conversation.end("q", "a")
    conversation.save(path)
    loaded = Conversation()
    loaded.load(path)
    assert loaded.body() == conversation.body()
    assert loaded.turns == [("q", "a")]
    assert kinds(loaded.begin(loaded.retry())) == [["image_url", "q"]]


def test_a_saved_part_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text('{"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}')
    with pytest.raises(ConversationError, match="texts and pictures"):
        Conversation().load(path)


def test_a_file_that_is_no_picture_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    for path, words in (
        (tmp_path / "a.png", "is no picture"),
        (tmp_path, "a folder"),
        (Path("/dev/zero"), "a device"),
        (tmp_path / "b", "No such"),
    ):
        with pytest.raises(ConversationError, match=words):
            picture_part(path)
    with pytest.raises(ConversationError, match="null"):
        run_command("/image a\0b", Conversation())


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "I;16"])
def test_a_large_file_is_made_smaller(tmp_path: Path, mode: str) -> None:
    path = save(tmp_path / "a.png", size=(2000, 1000), mode=mode)
    with path.open("ab") as file:
        file.write(bytes(MAX_UNCHANGED_BYTES))
    sent = decoded(picture_part(path))
    assert (sent.format, sent.size) == ("JPEG", (1568, 784))


def test_a_format_that_servers_do_not_read_is_converted(tmp_path: Path) -> None:
    assert decoded(picture_part(save(tmp_path / "a.bmp"))).format == "JPEG"
    assert decoded(picture_part(save(tmp_path / "a.png"))).format == "PNG"


async def test_a_model_that_sees_gets_them(
    start_server: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await start_server(text_model=SeeingTextModel())
    assert await chat(f"/image {save(tmp_path / 'a.png')}\nq\n", monkeypatch, "--url", server.url) == 0
    assert [colour for _, colour in seen(server)] == [[255, 0, 0]]


async def test_a_model_that_reads_text_alone_refuses_them(
    server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save(tmp_path / "a.png")
    assert await chat(f"/image {path}\n", monkeypatch, "--url", server.url) == 1
    assert "reads text alone; /image needs a model that sees" in capsys.readouterr().err


def test_commands_and_paths_are_completed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in[1].png").touch()
    assert completions("/im", "/im") == ["/image"]
    assert completions(f"/image {tmp_path}/in", f"{tmp_path}/in") == [f"{tmp_path}/in/", f"{tmp_path}/in[1].png"]
    assert completions(f"/image {tmp_path}/in[", f"{tmp_path}/in[") == [f"{tmp_path}/in[1].png"]
    assert completions("what /im", "/im") == []
    assert "/image" in HELP
