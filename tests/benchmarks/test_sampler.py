"""The benchmark of the sampler on a tiny model: it runs every kind of request and gives the right figures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.sampler import AllowAll, kinds, main
from sampling.host.params import SamplingParams
from sampling.host.rows import BITS, SamplerVariant, level_of, uses_bits
from tests.benchmarks.models.tiny_model import VOCAB_SIZE, write_tiny_model
from tests.thoroughness import IS_FULL


def test_the_kinds_cover_the_three_levels_and_all_features() -> None:
    params = {kind: SamplingParams(max_tokens=100, **wishes) for kind, wishes in kinds(VOCAB_SIZE).items()}
    assert [level_of(wishes) for wishes in params.values()] == list(SamplerVariant)
    assert uses_bits(params["everything"], has_grammar=True) == sum(BITS.values())
    for wishes in params.values():
        wishes.check_token_ids(VOCAB_SIZE)


@pytest.mark.skipif(not IS_FULL, reason="it compiles an engine beside the steps; EAGRE_FULL=1 runs it")
def test_shares_and_throughput(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, figures = write_tiny_model(tmp_path / "tiny.gguf"), tmp_path / "figures.json"
    arguments = ["--model", str(model), "--rows", "1", "--rounds", "1", "--context", "12", "--output-len", "12"]
    assert main([*arguments, "--num-pages", "60", "--json", str(figures)]) == 0
    rows = {(row["load"], row["figure"]): row for row in json.loads(figures.read_text())["table"]}
    forward, sample, share = (
        rows["1 rows", name]["medians"] for name in ("forward, ms", "sample, ms", "share of sampling, %")
    )
    assert list(share) == ["greedy", "top-p", "everything"]
    for kind in share:
        assert share[kind] == pytest.approx(100 * sample[kind] / (forward[kind] + sample[kind]))
        assert sample[kind] > 0
    rates = rows["1 streams, with a schema", "tok/s"]
    assert list(rates["medians"]) == ["none", "half", "all"]
    assert all(rate > 0 for rate in rates["medians"].values())
    assert rates["ratios"].keys() == {"half/none", "all/none"}
    printed = capsys.readouterr().out
    assert "everything" in printed
    assert "half/none" in printed


def test_a_grammar_of_every_text_allows_all() -> None:
    words = np.zeros(3, np.uint32)
    AllowAll().fill_mask(words)
    assert (words == 0xFFFFFFFF).all()
