"""Alternation whose servers and loads are stand-ins: what is measured in which order, and what the table says of it."""

from __future__ import annotations

import argparse

import pytest

from benchmarks.serving import loads
from benchmarks.serving.alternation import Measured, alternate, alternate_servers, finish
from benchmarks.serving.loads import ServerLoad
from benchmarks.serving.table import Row, Turn
from tests.benchmarks.serving.stand_ins import PAIR, Bench

NAMES = ["Eagre", "llama.cpp"]


def run(*chosen: ServerLoad, max_others: float = 1.0, rounds: int = 1) -> list[Turn]:
    options = argparse.Namespace(max_others=max_others, rounds=rounds, seed=0)
    return alternate_servers(PAIR, chosen, options)


def test_servers_take_turns_with_the_same_new_prompts(bench: Bench) -> None:
    run(loads.decode(1), loads.prefix(), rounds=2)
    # Each once without being counted, then a round in either order.
    assert bench.starts == ["Eagre", "llama.cpp", "Eagre", "llama.cpp", "llama.cpp", "Eagre"]
    there, back = ["http://Eagre", "http://llama.cpp"], ["http://llama.cpp", "http://Eagre"]
    assert [load.url for load in bench.measured] == [*there, *there, *back, *back]
    prompts = [tuple(map(tuple, load.token_prompts())) for load in bench.measured]
    assert prompts[::2] == prompts[1::2]
    assert len(set(prompts)) == 4
    assert not {load.seed for load in bench.measured} & {load.seed for load in bench.loads[::2]}


def test_a_disturbed_turn_is_taken_again_with_other_prompts(bench: Bench) -> None:
    bench.others = [0.2, 0.01]
    turns = run(loads.prefill(), max_others=0.05)
    assert [turn.others for turn in turns if turn.load == "prefill"] == [0.01, 0.0]
    assert [load.url for load in bench.measured] == ["http://Eagre", "http://Eagre", "http://llama.cpp"]
    first, second, other = (load.seed for load in bench.measured)
    assert first == other != second


def test_the_quietest_of_too_many_tries_counts(bench: Bench) -> None:
    bench.others = [0.9, 0.5, 0.7, 0.8, 0.6]
    turns = run(loads.prefill(), max_others=0.05)
    assert turns[0].others == 0.5


def test_contenders_of_a_round_get_the_same_seed_in_an_order_that_changes() -> None:
    calls: list[tuple[str, int]] = []

    def contender(name: str):
        return lambda seed: calls.append((name, seed)) or Measured({"value": 1.0})

    turns = alternate("load", {name: contender(name) for name in "abc"}, range(2))
    assert [name for name, _ in calls] == [*"abccba"]
    assert [len({seed for _, seed in calls[:3]}), len({seed for _, seed in calls})] == [1, 2]
    assert [(turn.round, turn.contender) for turn in turns] == [*zip([0, 0, 0, 1, 1, 1], "abccba", strict=True)]


def test_table(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    turns = run(loads.decode(1), loads.prefix(), rounds=2)
    capsys.readouterr()
    assert finish(turns, NAMES, argparse.Namespace(json=None), "benchmarks.some", []) == 0
    table = {" ".join(line.split()) for line in capsys.readouterr().out.splitlines()}
    assert "load figure Eagre llama.cpp Eagre/llama.cpp" in table
    assert "c1 gap p50 125.0 (125.0..125.0) 250.0 (250.0..250.0) 0.500" in table
    assert "prefix cached tok 960.0 (960.0..960.0) 960.0 (960.0..960.0) 1.000" in table
    assert "server ready, s 4.00 (4.00..4.00) 2.00 (2.00..2.00) 2.000" in table
    assert "server cold start, s 8.00 (8.00..8.00) 4.00 (4.00..4.00) 2.000" in table
    assert "server RSS MiB peak 3.00 (3.00..3.00) 3.00 (3.00..3.00) 1.000" in table
    assert "c1 others, % 0.00 (0.00..0.00) 0.00 (0.00..0.00) -" in table


def test_ratio_is_of_medians_and_needs_both() -> None:
    pairs = [("a", "b")]
    assert Row("c1", "tok/s", {"a": [1.0, 30.0, 2.0], "b": [4.0, 4.0, 1.0]}, pairs).ratios == {"a/b": 0.5}
    assert Row("c1", "tok/s", {"a": [1.0], "b": []}, pairs).cells("ab") == ["c1", "tok/s", "1.00", "-", "-"]
