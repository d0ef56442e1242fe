"""`eagre serve --decode-chunk 4`: several tokens from one program, and the same ones."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from benchmarks.serving.server_process import started_server
from tests.model_folders import write_folder
from tests.patience import PATIENCE_S
from tests.thoroughness import IS_FULL

SMALL = "--dtype float32 --max-num-seqs 2 --max-num-batched-tokens 66 --num-pages 64 --seed 0".split()
MAX_TOKENS = 24
BODIES: list[dict[str, Any]] = [
    {"prompt": [5, 6, 7], "temperature": 0},
    {"prompt": [9, 8, 7, 6], "temperature": 0.9, "seed": 3},
]


def answers_and_steps(folder: Path, *flags: str) -> tuple[list[list[int]], int]:
    """The token ids of each body's answer, one after the other, and the steps that the engine took."""
    with started_server([*SMALL, "--model", str(folder), *flags]) as url:
        answers = []
        for body in BODIES:
            options = {"max_tokens": MAX_TOKENS, "ignore_eos": True, "return_token_ids": True}
            request = urllib.request.Request(
                url + "/v1/completions", json.dumps(body | options).encode(), {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
                answers.append(json.load(response)["choices"][0]["token_ids"])
        with urllib.request.urlopen(url + "/metrics", timeout=PATIENCE_S) as response:
            steps = re.search(r"^eagre_steps_total{.*} (\S+)$", response.read().decode(), re.MULTILINE)
        assert steps is not None
        return answers, int(float(steps[1]))


@pytest.mark.skipif(not IS_FULL, reason="EAGRE_FULL=1 starts two servers; tests of the engine have the tokens")
def test_the_flag_gives_the_same_tokens_in_fewer_steps(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tiny")
    single, num_single_steps = answers_and_steps(folder)
    chunked, num_chunked_steps = answers_and_steps(folder, "--decode-chunk", "4")
    assert [len(token_ids) for token_ids in single] == [MAX_TOKENS] * len(BODIES)
    assert chunked == single
    assert num_chunked_steps < num_single_steps / 2
