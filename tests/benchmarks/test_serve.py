from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest

from benchmarks.serve import main
from tests.fakes.stub_server import StubServer


async def test_table_and_figures_of_a_running_server(
    stub: StubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    arguments = f"--url {stub.url} --route websocket --concurrency 2 --requests 4 --output-tokens 9 --json {file}"
    assert await asyncio.to_thread(main, arguments.split()) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["load", "figure", "server"]
    assert {"tok/s", "TTFT", "gap", "TPOT"} <= {line[1] for line in lines}
    assert ["c2", "tok/chunk", "3.00"] in lines
    (turn,) = orjson.loads(file.read_bytes())["turns"]
    assert (turn["report"]["num_requests"], turn["report"]["num_output_tokens"]) == (4, 36)
