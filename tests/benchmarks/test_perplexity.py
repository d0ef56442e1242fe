"""Perplexities and their differences follow the definitions; the command compares variants."""

from __future__ import annotations

import argparse
import json
import math
import random
from pathlib import Path

import numpy as np
import pytest

from benchmarks.perplexity import Score, Way, main, parse_arguments, ways_beyond
from engine.interface.config import EngineConfig
from tests.benchmarks.models.tiny_model import write_tiny_model


def a_score(log_likelihoods: np.ndarray) -> Score:
    return Score("some", log_likelihoods, num_tokens=100, seconds=1.0)


def test_perplexity_is_the_number_of_equally_probable_tokens() -> None:
    score = a_score(np.full(4, math.log(1 / 37)))
    assert score.perplexity == pytest.approx(37.0)
    assert score.difference(score) == 0.0
    assert score.difference_interval(score) == (0.0, 0.0)


def test_a_difference_is_a_share_of_the_reference() -> None:
    reference, worse = a_score(np.log([1 / 10, 1 / 40])), a_score(np.log([1 / 10, 1 / 40]) - math.log(1.02))
    assert worse.difference(reference) == pytest.approx(worse.perplexity / reference.perplexity - 1)
    assert worse.difference(reference) == pytest.approx(0.02)


def test_windows_that_all_lose_the_same_leave_no_doubt_however_hard_they_are() -> None:
    reference = a_score(np.random.default_rng(0).normal(-3.0, 1.0, 20))
    worse = a_score(reference.log_likelihoods - math.log(1.01))
    assert worse.difference_interval(reference) == pytest.approx((0.01, 0.01))


def test_the_interval_follows_from_the_standard_error() -> None:
    losses = np.random.default_rng(1).normal(0.0, 0.001, 400)
    reference = a_score(np.zeros(400))
    low, high = a_score(-losses).difference_interval(reference)
    error = losses.std() / math.sqrt(len(losses))
    assert (low, high) == pytest.approx((losses.mean() - 1.96 * error, losses.mean() + 1.96 * error), abs=0.2 * error)


def test_only_a_perplexity_above_the_limit_is_beyond_it() -> None:
    scores = [
        Score(way, np.full(3, -math.log(perplexity)), num_tokens=100, seconds=1.0)
        for way, perplexity in (("reference", 10.0), ("better", 9.0), ("close", 10.04), ("worse", 10.06))
    ]
    assert ways_beyond(0.5, scores) == ["worse"]
    assert ways_beyond(math.inf, scores) == []


def test_by_default_the_engine_is_compared_with_exact_arithmetic() -> None:
    exact, served = parse_arguments([]).ways
    assert (exact.config.dtype, exact.config.matmul_backend, exact.config.attention_backend) == (
        "float32",
        "xla",
        "xla",
    )
    assert served.config == EngineConfig()


def test_a_variant_is_a_dtype_and_settings() -> None:
    way = Way.parse("bfloat16,kv_cache_dtype=int8,page_size=16")
    assert (way.config.dtype, way.config.kv_cache_dtype, way.config.page_size) == ("bfloat16", "int8", 16)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("float16", "dtype is 'float16'; it must be .*float32"),
        ("float32,colour=red", "no setting 'colour'; there are dtype, .*kv_cache_dtype"),
        ("float32,page_size=few", "page_size is 'few'; it must be an integer"),
        ("float32,kv_cache_dtype", "kv_cache_dtype is ''"),
    ],
)
def test_an_unknown_variant_is_refused(name: str, words: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=words):
        Way.parse(name)


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("".join(random.Random(0).choices("abcdefgh ", k=400)), encoding="ascii")
    return path


def test_the_command_compares_every_way_with_the_first(
    tmp_path: Path, text_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, figures = write_tiny_model(tmp_path / "tiny.gguf"), tmp_path / "figures.json"
    arguments = ["--model", str(model), "--text", str(text_file), "--windows", "3", "--window-size", "100"]
    assert (
        main([*arguments, "--ways", "float32", "float32,kv_cache_dtype=int8", "--json", str(figures), "--limit=-90"])
        == 1
    )
    first, second = json.loads(figures.read_text())["scores"]
    assert (first["num_tokens"], first["difference"]) == (297, 0.0)
    assert second["perplexity"] / first["perplexity"] - 1 == pytest.approx(second["difference"])
    low, high = second["difference_interval"]
    assert low <= second["difference"] <= high
    assert 0.0 < abs(second["difference"]) < 0.05
    output = capsys.readouterr().out
    assert f"{first['perplexity']:.4f}" in output
    assert f"{second['difference']:+.3%}" in output
    assert "beyond the limit of -90 %: float32, float32,kv_cache_dtype=int8" in output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--window-size", "300"], "the window size is 300; the model was trained for 256 tokens"),
        (["--windows", "9"], "the number of windows is 9"),
        (["--text", "/nowhere/text.txt"], "No such file"),
        (["--model", "/nowhere/model.gguf"], "there is no such file"),
    ],
)
def test_impossible_measurements_are_refused(tmp_path: Path, text_file: Path, arguments: list[str], words: str) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf")
    defaults = ["--model", str(model), "--text", str(text_file), "--windows", "2", "--window-size", "64"]
    with pytest.raises(SystemExit, match=words):
        main([*defaults, *arguments])
