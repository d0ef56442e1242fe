"""The command that compares two checkouts, with stand-ins for their servers and for their benchmark of steps."""

from __future__ import annotations

import sys
from pathlib import Path

import orjson
import pytest

from benchmarks import trees
from benchmarks.serving.server_process import ServerFailed
from tests.benchmarks.serving.stand_ins import Bench

# Writes what it was asked for as the figures of one case, and says where it ran by how long a step took.
STEPS = """
import json, os, sys
file, *rest = sys.argv[sys.argv.index("--json") + 1:]
seconds = float(open("seconds").read())
timings = [{"name": "qkv", "seconds": 9.0}, {"name": "whole step", "seconds": seconds}]
json.dump({"cases": {" ".join(rest): timings}}, open(file, "w"))
"""


@pytest.fixture
def checkouts(tmp_path: Path) -> list[str]:
    """The arguments that name two of them: steps take 2 and 1 s."""
    for name, seconds in (("before", 2), ("after", 1)):
        for room in ("server", "benchmarks"):
            (tmp_path / name / room).mkdir(parents=True)
            (tmp_path / name / room / "__init__.py").touch()
        (tmp_path / name / "server" / "__main__.py").touch()
        (tmp_path / name / "benchmarks" / "kernels.py").write_text(STEPS)
        (tmp_path / name / "seconds").write_text(str(seconds))
    return ["--before", str(tmp_path / "before"), "--after", str(tmp_path / "after")]


def table_of(capsys: pytest.CaptureFixture[str]) -> set[str]:
    return {" ".join(line.split()) for line in capsys.readouterr().out.splitlines()}


def test_servers_of_both_take_turns(
    bench: Bench, checkouts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    arguments = [*checkouts, *f"--clients 2 --requests 3 --rounds 2 --json {file}".split()]
    assert trees.main(arguments) == 0
    assert [load.url for load in bench.measured] == ["http://before", "http://after", "http://after", "http://before"]
    assert all(load.keep_alive and load.return_token_ids and load.concurrency == 2 for load in bench.measured)
    table = table_of(capsys)
    assert "load figure before after before/after" in table
    assert "c2 TTFT p50 1,000 (1,000..1,000) 1,000 (1,000..1,000) 1.000" in table
    assert "c2 gap p99 250.0 (250.0..250.0) 125.0 (125.0..125.0) 2.000" in table
    assert "c2 processor s 1.50 (1.50..1.50) 1.50 (1.50..1.50) 1.000" in table
    assert "server ready, s 2.00 (2.00..2.00) 4.00 (4.00..4.00) 0.500" in table
    figures = orjson.loads(file.read_bytes())
    assert [tree["name"] for tree in figures["trees"]] == ["before", "after"]
    assert {row["figure"] for row in figures["table"] if row["load"] == "c2"} >= {"tok/s", "processor s"}


def test_other_loads_and_tiles(bench: Bench, checkouts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert trees.main([*checkouts, *"--loads prefix prefill --rounds 1".split()]) == 0
    prompts = [(load.num_prompt_tokens, load.num_shared_tokens) for load in bench.measured]
    assert prompts == [(1024, 960)] * 2 + [(1024, 0)] * 2
    assert all(load.keep_alive and load.return_token_ids for load in bench.measured)
    assert trees.main([*checkouts, *"--step --clients 4 --tiles 2 --rounds 1".split()]) == 0
    assert "--tiles 2 --rows 4 whole step, ms" in " ".join(capsys.readouterr().out.split())


def test_a_server_is_of_its_checkout(tmp_path: Path) -> None:
    server = trees.Tree("before", tmp_path, Path("python")).server(["--max-num-seqs", "4"])
    assert server.folder == tmp_path
    command = server.command
    assert command[:4] == ["python", "-m", "server", "serve"]
    assert command[command.index("--port") + 1] == server.url.rpartition(":")[2]
    assert command[-2:] == ["--max-num-seqs", "4"]


def test_steps_of_both_take_turns(checkouts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert trees.main([*checkouts, *"--step --clients 1 16 --rounds 2".split()]) == 0
    out, err = capsys.readouterr()
    assert "--tiles --rows 1 16 whole step, ms 2,000 (2,000..2,000) 1,000 (1,000..1,000) 2.000" in " ".join(out.split())
    told = [line.split(", ")[2].split(":")[0] for line in err.splitlines() if line.startswith("round")]
    assert told == ["before", "after", "after", "before"]


def test_steps_that_fail(checkouts: list[str]) -> None:
    Path(checkouts[-1], "seconds").unlink()
    with pytest.raises(ServerFailed, match=r"benchmarks\.kernels .* exited with 1"):
        trees.main([*checkouts, "--step"])


def test_the_interpreter_is_the_given_one_the_checkouts_own_or_this(checkouts: list[str], tmp_path: Path) -> None:
    own = tmp_path / "before" / ".venv" / "bin" / "python"
    own.parent.mkdir(parents=True)
    own.touch()
    before, after = trees.chosen_trees(trees.parse_arguments(checkouts))
    assert (before.python, after.python) == (own, Path(sys.executable))
    before, after = trees.chosen_trees(
        trees.parse_arguments([*checkouts, "--before-python", "/a", "--after-python", "/b"])
    )
    assert (before.python, after.python) == (Path("/a"), Path("/b"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--rounds 0", "--rounds: must be at least 1, not 0"),
        ("--clients 4 0", "--clients: must be at least 1, not 0"),
        ("--requests 0", "--requests: must be at least 1, not 0"),
        ("--after .nowhere", "--after: there is no checkout of Eagre in .nowhere"),
    ],
)
def test_what_cannot_be_compared(
    checkouts: list[str], arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        trees.main([*checkouts, *arguments.split()])
    assert message in capsys.readouterr().err
