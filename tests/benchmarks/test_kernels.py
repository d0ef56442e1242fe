"""The times of kernels within whole steps: which kernels run how often, and what they read and compute."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from benchmarks.kernels import main, timings_of
from benchmarks.microbenchmarks.decoding import StepTime
from engine.backends.native import library
from engine.backends.native.kernel_times import KernelTime
from engine.models.open_model import open_model
from tests.benchmarks.models.tiny_model import write_tiny_model


@pytest.fixture
def _native() -> None:
    try:
        library.load()
    except library.NativeUnavailable as reason:
        pytest.skip(str(reason))


@pytest.mark.usefixtures("_native")
def test_a_decode_step_and_a_prompt_of_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, figures = write_tiny_model(tmp_path / "tiny.gguf"), tmp_path / "figures.json"
    arguments = ["--rows", "2", "--tiles", "1", "--context", "20", "--repeats", "2", "--kv", "float32"]
    assert main(["--model", str(model), *arguments, "--json", str(figures)]) == 0
    config = open_model(model).model.config
    cases = orjson.loads(figures.read_bytes())["cases"]
    assert list(cases) == ["2 decode rows, context 20", "64 prompt tokens, context 64"]
    for case, num_tokens, num_sampled, num_seen in zip(cases.values(), (2, 64), (2, 1), (2 * 20, 65 * 32), strict=True):
        by_name = {timing["name"]: timing for timing in case}
        attention = by_name["attention"]
        head = next(timing for name, timing in by_name.items() if name.startswith("head_product"))
        assert (attention["num_calls"], head["num_calls"]) == (config.num_layers, 1)
        assert head["num_operations"] == pytest.approx(
            2 * num_sampled * config.vocab_size * config.hidden_size, rel=16 / config.vocab_size
        )
        products = sum(timing["num_calls"] for name, timing in by_name.items() if "_product " in name)
        assert products == 4 * config.num_layers + 1
        # A decode step is one of the three that follow each other.
        of_a_token = 4 * config.num_layers * config.q_size
        assert num_seen * of_a_token <= attention["num_operations"] <= (num_seen + 4 * num_tokens) * of_a_token
        seconds = [timing["seconds"] for timing in case]
        assert min(seconds) > 0
        assert by_name["whole step"]["seconds"] == max(seconds)
    assert "floor by memory" in capsys.readouterr().out


@pytest.mark.usefixtures("_native")
def test_decode_rows_alone(tmp_path: Path) -> None:
    model, figures = write_tiny_model(tmp_path / "tiny.gguf"), tmp_path / "figures.json"
    arguments = ["--rows", "1", "--tiles", "--context", "20", "--repeats", "1", "--kv", "float32"]
    assert main(["--model", str(model), *arguments, "--json", str(figures)]) == 0
    assert list(orjson.loads(figures.read_bytes())["cases"]) == ["1 decode rows, context 20"]


def test_kernels_of_one_shape_stand_together_the_longest_first() -> None:
    def step(*seconds: float) -> StepTime:
        names = [("attention", 0, 0), ("norm_product", 96, 64), ("norm_product", 64, 64)]
        kernels = [KernelTime(*name, 3, each, 10, 20) for name, each in zip(names, seconds, strict=True)]
        return StepTime(1.0, kernels)

    timings = timings_of([step(0.1, 0.2, 0.3), step(0.2, 0.3, 0.1), step(0.1, 0.4, 0.1)])
    assert [(timing.name, timing.seconds) for timing in timings] == [
        ("norm_product 96x64", 0.3),
        ("attention", 0.1),
        ("norm_product 64x64", 0.1),
        ("all that is not a kernel", pytest.approx(0.4)),
        ("whole step", 1.0),
    ]
    assert timings[0][2:] == (3, 10, 20)
