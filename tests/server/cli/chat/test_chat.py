"""`eagre chat` against a server, with fakes for the terminal, and in a real one."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from server.cli import main as cli
from server.cli.chat.chat import Chat
from server.cli.chat.conversation import Conversation
from server.cli.client import address
from server.cli.client.errors import NoAnswer
from server.cli.client.server_client import Piece
from server.startup import model_loader
from server.startup.model_loader import LoadedModel
from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.text_model import FakeTextModel, render
from tests.patience import PATIENCE_S
from tests.server.conftest import RunningServer, StartServer

KEY = "sk-tide-and-time"


class FakeScreen:
    is_interactive = True

    def __init__(self, *lines: str | BaseException) -> None:
        self._lines = list(lines)
        self.pieces: list[Piece] = []
        self.told: list[str] = []
        self.num_ended = 0

    def read(self) -> str | None:
        line = self._lines.pop(0) if self._lines else None
        if isinstance(line, BaseException):
            raise line
        return line

    def write(self, piece: Piece) -> None:
        self.pieces.append(piece)

    def end_answer(self) -> None:
        self.num_ended += 1

    def tell(self, text: str) -> None:
        self.told.append(text)


class FakeAnswers:
    """Writes pieces, or raises them."""

    name = "fake"

    def __init__(self, *pieces: Piece | BaseException) -> None:
        self._pieces: Sequence[Piece | BaseException] = pieces
        self.bodies: list[dict[str, Any]] = []

    def answer(self, body: dict[str, Any], write: Callable[[Piece], object]) -> None:
        self.bodies.append(body)
        for piece in self._pieces:
            if isinstance(piece, BaseException):
                raise piece
            write(piece)

    def sees(self, _model: str | None) -> bool:
        return True

    def close(self) -> None:
        pass


def test_reasoning_is_shown_and_not_sent_back() -> None:
    conversation, screen = Conversation(), FakeScreen("q")
    pieces = (Piece("hm", is_reasoning=True), Piece("a"), Piece("b"))
    assert Chat(conversation, FakeAnswers(*pieces), screen).run()
    assert screen.pieces == list(pieces)
    assert conversation.turns == [("q", "ab")]


@pytest.mark.parametrize(("stop", "told"), [(KeyboardInterrupt(), "stopped"), (NoAnswer("it is gone"), "it is gone")])
def test_an_answer_that_was_stopped_or_broke_is_kept_as_far_as_it_came(stop: BaseException, told: str) -> None:
    conversation, screen = Conversation(), FakeScreen("q", "/undo", "/quit", "never read")
    assert Chat(conversation, FakeAnswers(Piece("half"), stop), screen).run()
    assert screen.told[0] == f"eagre: {told}"
    assert screen.told[1] == "removed: q"
    assert screen.num_ended == 1


def test_the_chat_goes_on_after_a_wrong_command_an_empty_line_and_an_interrupt() -> None:
    answers, screen = FakeAnswers(Piece("a")), FakeScreen("/dance", "", KeyboardInterrupt(), "q", "/retry")
    assert Chat(Conversation(), answers, screen).run()
    assert "/dance" in screen.told[0]
    assert "Ctrl-D" in screen.told[1]
    question = [{"role": "user", "content": "q"}]
    assert [body["messages"] for body in answers.bodies] == [question, question]


async def chat(lines: str, monkeypatch: pytest.MonkeyPatch, *flags: str) -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    return await asyncio.to_thread(cli.main, ["chat", *flags])


async def test_without_a_terminal_each_line_is_a_question_and_the_output_has_answers_alone(
    server: RunningServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = '/system Be brief.\none\n/set seed 4\n"""\ntwo\n*lines*\n"""\n'
    assert await chat(lines, monkeypatch, "--url", server.url, "--temperature", "0") == 0
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one"}]
    first = render(*messages)
    later = [{"role": "assistant", "content": first}, {"role": "user", "content": "two\n*lines*"}]
    shown = capsys.readouterr()
    assert shown.out == f"{first}\n{render(*messages, *later)}\n"
    assert "seed = 4" in shown.err
    assert [stream.params.seed for stream in server.engine.submitted][1] == 4
    assert server.engine.submitted[0].params.temperature == 0


async def test_a_refusal_fails_without_a_terminal(
    server: RunningServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await chat("/set temperature 3\nq\n/dance\n", monkeypatch, "--url", server.url) == 1
    shown = capsys.readouterr().err
    assert "eagre: temperature is 3; it must be from 0 to 2\n" in shown or "temperature is 3.0" in shown
    assert "no command /dance" in shown


async def test_the_key_is_sent_and_a_wrong_one_is_refused_at_the_start(
    start_server: StartServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await start_server(api_keys=(KEY,))
    assert await chat("q\n", monkeypatch, "--url", server.url, "--api-key", KEY) == 0
    capsys.readouterr()
    assert await chat("q\n", monkeypatch, "--url", server.url, "--api-key", "sk-a-wrong-key") == 1
    assert "key" in capsys.readouterr().err


async def test_a_server_that_does_not_answer_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await chat("q\n", monkeypatch, "--url", "http://127.0.0.1:1") == 1
    assert "no server answers at http://127.0.0.1:1" in capsys.readouterr().err


async def test_without_a_server_the_model_is_loaded_into_this_process(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngineClient()
    monkeypatch.setattr(model_loader, "load_model", lambda *_: LoadedModel(engine.client, FakeTextModel().model))
    monkeypatch.setattr(address, "DEFAULT_URL", "http://127.0.0.1:1")
    monkeypatch.delenv("EAGRE_URL", raising=False)
    assert await chat("q\n/retry\n/model other\n/set temperature 3\n/retry\n", monkeypatch) == 1
    answer = render({"role": "user", "content": "q"})
    shown = capsys.readouterr()
    assert shown.out.split("\n\n")[0].startswith(answer)
    assert shown.out.count(answer) == 2
    assert shown.err.startswith("no server at http://127.0.0.1:1; loading the model here\n")
    assert "temperature is 3" in shown.err
    assert engine.is_shut_down


async def test_a_real_terminal_gets_styles_and_keeps_what_was_entered(
    server: RunningServer, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "TERM": "xterm", "EAGRE_URL": server.url}
    variables.pop("NO_COLOR", None)
    main_end, terminal_end = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "server", "chat"),
        stdin=terminal_end, stdout=terminal_end, stderr=terminal_end, env=variables, start_new_session=True,
    )  # fmt: skip
    os.close(terminal_end)
    shown = b""

    def read_until(text: bytes) -> None:
        nonlocal shown
        while text not in shown:
            shown += os.read(main_end, 4096)

    try:
        await asyncio.to_thread(read_until, b">>> ")
        os.write(main_end, b"so **bold**\n")
        await asyncio.to_thread(read_until, b"\x1b[1mbold\x1b[0m")
        os.write(main_end, b"/quit\n")
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(main_end)
    assert b"/help lists the commands" in shown
    history = tmp_path / "eagre" / "chat_history"
    assert "so **bold**" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0


async def test_a_chat_that_is_ended_ends_the_processes_of_its_tools(server: RunningServer, tmp_path: Path) -> None:
    script, started = Path(__file__).parents[1] / "tools" / "scripted_mcp.py", tmp_path / "pid"
    code = f"import os, runpy, time; open({str(started)!r}, 'w').write(str(os.getpid()))"
    code += f"; runpy.run_path({str(script)!r}, run_name='__main__'); time.sleep(600)"
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"files": {"command": sys.executable, "args": ["-c", code]}}}))
    variables = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "TERM": "xterm", "EAGRE_URL": server.url}
    main_end, terminal_end = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "server", "chat", "--mcp-config", str(config)),
        stdin=terminal_end, stdout=terminal_end, stderr=terminal_end, env=variables, start_new_session=True,
    )  # fmt: skip
    os.close(terminal_end)
    shown = b""

    def read_prompt() -> None:
        nonlocal shown
        while b">>> " not in shown:
            shown += os.read(main_end, 4096)

    try:
        await asyncio.to_thread(read_prompt)
        assert b"tools: add, no_schema_" in shown
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 128 + signal.SIGTERM
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(main_end)
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)
