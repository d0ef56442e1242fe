"""Rounds whose servers and loads are stand-ins: what is measured in which order, and what the table says of it."""

from __future__ import annotations

import pytest

from benchmarks.serving import peer_loads
from benchmarks.serving.rounds import Rounds, Row, print_table, rows
from tests.benchmarks.serving.stand_ins import PAIR, Bench


def test_servers_take_turns_with_the_same_new_prompts(bench: Bench) -> None:
    loads = [peer_loads.decode(1), peer_loads.prefix()]
    Rounds(PAIR, loads, max_others=1.0, seed=0).run(num_rounds=2)
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
    turns = Rounds(PAIR, [peer_loads.prefill()], max_others=0.05, seed=0).run(num_rounds=1)
    assert [turn.others for turn in turns if turn.load == "prefill"] == [0.01, 0.0]
    assert [load.url for load in bench.measured] == ["http://Eagre", "http://Eagre", "http://llama.cpp"]
    first, second, other = (load.seed for load in bench.measured)
    assert first == other != second


def test_the_quietest_of_too_many_tries_counts(bench: Bench) -> None:
    bench.others = [0.9, 0.5, 0.7, 0.8, 0.6]
    turns = Rounds(PAIR, [peer_loads.prefill()], max_others=0.05, seed=0).run(num_rounds=1)
    assert turns[0].others == 0.5


def test_table(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    turns = Rounds(PAIR, [peer_loads.decode(1), peer_loads.prefix()], max_others=1.0, seed=0).run(num_rounds=2)
    capsys.readouterr()
    print_table(rows(turns, ("Eagre", "llama.cpp")), ("Eagre", "llama.cpp"))
    table = {" ".join(line.split()) for line in capsys.readouterr().out.splitlines()}
    assert "load figure Eagre llama.cpp ratio" in table
    assert "c1 gap p50 125.0 (125.0..125.0) 250.0 (250.0..250.0) 0.50" in table
    assert "prefix cached tok 960.0 (960.0..960.0) 960.0 (960.0..960.0) 1.00" in table
    assert "server ready, s 4.00 (4.00..4.00) 2.00 (2.00..2.00) 2.00" in table
    assert "server cold start, s 8.00 (8.00..8.00) 4.00 (4.00..4.00) 2.00" in table
    assert "server RSS MiB peak 3.00 (3.00..3.00) 3.00 (3.00..3.00) 1.00" in table
    assert "c1 others, % 0.00 (0.00..0.00) 0.00 (0.00..0.00) -" in table


def test_ratio_is_of_medians_and_needs_both() -> None:
    assert Row("c1", "tok/s", ([1.0, 30.0, 2.0], [4.0, 4.0, 1.0])).ratio == 0.5
    assert Row("c1", "tok/s", ([1.0], [])).cells() == ["c1", "tok/s", "1.00", "-", "-"]
