"""Every recorded request gets the recorded answer, byte for byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.golden.wire.player import play
from tests.server.conftest import StartServer

pytestmark = pytest.mark.usefixtures("kept_trials")

RECORDING = Path(__file__).parents[1] / "golden" / "wire" / "recording.jsonl"
CASES: list[dict[str, Any]] = [json.loads(line) for line in RECORDING.read_bytes().splitlines()]


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
async def test_the_answers_are_the_recorded_ones(start_server: StartServer, case: dict[str, Any]) -> None:
    answers = await play(case, start_server)
    assert len(answers) == len(case["answers"])
    for exchange, answer, recorded in zip(case["exchanges"], answers, case["answers"], strict=True):
        assert answer == recorded, json.dumps(exchange)[:400]


def test_the_recording_is_whole() -> None:
    """A file cut short would make the test above pass on less."""
    assert len({case["name"] for case in CASES}) == len(CASES) >= 200
    assert sum(len(case["exchanges"]) for case in CASES) >= 1000
