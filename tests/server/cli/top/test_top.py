"""`eagre top`: what is drawn, and that a server's stream can be followed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from rich.console import Console

from server.cli import main as cli
from server.cli.top.history import History
from server.cli.top.picture import draw, page_bar, sparkline
from tests.fakes.engine_client import FakeEngineClient
from tests.server.conftest import RunningServer, StartServer, eventually

REQUEST = {
    "id": "cmpl-7", "key": "k", "slot": 2, "state": "prompt", "prompt": 200, "computed": 50, "cached": 16,
    "output": 0, "pages": 4, "preemptions": 0, "age_ms": 1500.0, "queue_ms": 1.0,
}  # fmt: skip
ANSWER = REQUEST | {"slot": 0, "state": "answer", "computed": 200, "output": 30, "id": None}
WAITING = REQUEST | {"slot": -1, "state": "waiting", "computed": 0}
PAGES = {
    "page_size": 16, "total": 100, "free": 40, "cached": 30, "active": 30, "shared": 10, "pages_per_cell": 1, "map": "",
}  # fmt: skip
EVENT: dict[str, Any] = {
    "model": "tide", "state": "ready", "now_ms": 1000.0, "num_slots": 8, "num_running": 2, "num_waiting": 1,
    "num_steps": 12, "num_prompt_tokens": 400, "num_generation_tokens": 30, "num_preemptions": 0,
    "prefix_cache_queries": 400, "prefix_cache_hits": 100, "device_idle_fraction": 0.015,
    "slots": [REQUEST, ANSWER], "queue": [WAITING], "pages": PAGES,
    "steps": [[1, 2, 64, 0, 0, 0, 0, 0, 0, 10.0, 14.0], [2, 4, 64, 0, 0, 0, 0, 0, 0, 20.0, 26.0]],
}  # fmt: skip


def event(at_s: float, num_tokens: int, **others: Any) -> dict[str, Any]:
    return EVENT | {"now_ms": at_s * 1000, "num_generation_tokens": num_tokens} | others


def picture(width: int = 120, height: int | None = 40, **others: Any) -> list[str]:
    history = History()
    history.add(event(1.0, 10))
    last = event(2.0, 60, steps=[], **others)
    history.add(last)
    console = Console(width=width, force_terminal=True, color_system=None, highlight=False)
    with console.capture() as captured:
        console.print(draw(last, history, width=width, height=height, where="http://sea:8000"))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_the_picture_has_the_engine_s_figures() -> None:
    text = "\n".join(picture())
    for figure in (
        "http://sea:8000: tide is ready", "50.0 generated", "2 of 8 running, 1 waiting", "5.0 ms, 3.0 requests",
        "device idle 1.5%", "25% of 400 prompt tokens", "30 in use (10 shared), 30 cached, 40 free",
    ):  # fmt: skip
        assert figure in text


def test_each_request_has_a_line() -> None:
    prompt, answer, waiting = (line.split() for line in picture()[-3:])
    assert prompt == ["2", "prompt", "200", "50", "16", "0", "4", "1.5", "s", "prompt", "25%", "cmpl-7"]
    assert answer[-4:] == ["20.0/s", "(of", "another", "key)"]
    assert waiting[:2] == ["-", "waiting"]


def test_the_picture_fits_the_terminal_and_says_what_is_left_out() -> None:
    lines = picture(width=50, height=12)
    assert len(lines) == 12
    assert max(map(len, lines)) <= 50
    assert lines[-1] == "… and 2 more requests"


def test_names_cannot_steer_the_terminal() -> None:
    lines = picture(model="a\x1b[2J\nb", slots=[REQUEST | {"id": "a\x1b[2J\nb"}])
    assert not any("\x1b" in line for line in lines)
    assert lines[0].endswith("a[2J b is ready")
    assert lines[-2].endswith("a[2J b")


def test_rates_are_those_of_the_last_two_seconds() -> None:
    history = History()
    history.add(event(0.0, 0))
    assert history.generation_rate == 0
    for second in range(1, 11):
        history.add(event(second, 100 * second if second <= 8 else 800))
    assert history.generation_rate == 0
    assert max(history.rates) == 100
    history.add(event(0.5, 7))  # the server was started anew
    assert history.generation_rate == 0


def test_bars() -> None:
    assert sparkline([0, 5, 10], 10) == "▁▅█"
    assert sparkline([1, 2, 3], 0) == ""
    assert sparkline([0, 0], 2) == "▁▁"
    assert page_bar(PAGES, 10).plain == "█▓▓▒▒▒····"
    assert page_bar(PAGES | {"shared": 0, "active": 1, "cached": 0, "total": 10_000}, 10).plain == "▓·········"
    assert page_bar(PAGES | {"shared": 0, "active": 0, "cached": 0, "total": 0}, 3).plain == "···"


async def run_cli(*arguments: str) -> int:
    return await asyncio.to_thread(cli.main, ["top", *arguments])


async def test_one_picture_of_a_server(start_server: StartServer, capsys: pytest.CaptureFixture[str]) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine)
    asking = asyncio.create_task(server.post("/v1/completions", {"prompt": "abc"}))
    await eventually(lambda: len(engine.running) == 1)
    assert await run_cli("--url", server.url, "--once") == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"Eagre at {server.url}: {server.served.first.model_name} is ready\n")
    assert "\x1b" not in shown
    engine.step(10)
    await asking


@pytest.mark.parametrize(
    ("flags", "reason"), [(["--url", "http://127.0.0.1:1"], "no server answers"), (["--model", "other"], "other")]
)
async def test_what_cannot_be_followed_is_named(
    server: RunningServer, capsys: pytest.CaptureFixture[str], flags: list[str], reason: str
) -> None:
    assert await run_cli("--url", server.url, *flags) == 1
    assert reason in capsys.readouterr().err
