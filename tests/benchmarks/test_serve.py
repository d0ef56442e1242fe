from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest

from benchmarks.serve import COLUMNS, main
from tests.fakes.stub_server import StubServer


async def test_table_and_figures_of_a_running_server(
    stub: StubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    arguments = f"--url {stub.url} --route websocket --concurrency 2 --requests 4 --output-tokens 9 --json {file}"
    assert await asyncio.to_thread(main, arguments.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == " ".join(COLUMNS).split()
    assert lines[1].split()[:2] == ["2", "4"]
    assert lines[1].split()[-1] == "3.00"  # tokens in a chunk
    (load,) = orjson.loads(file.read_bytes())["loads"]
    assert load["workload"]["model"] == "stub"
    assert load["report"]["num_output_tokens"] == 36
