"""Measures what a way of computing a model costs in quality: perplexity over a fixed English text.

    python -m benchmarks.perplexity                             # the engine's defaults against float32 in XLA
    python -m benchmarks.perplexity --limit 0.5                 # the same; fails beyond 0.5 %
    python -m benchmarks.perplexity --ways float32 bfloat16 auto,kv_cache_dtype=int8

A way is a dtype, and after commas any other setting of the engine that is a word or a number. The
first way is the reference. All of them score the same windows of the same text, token by token,
each token given the true ones before it in its window.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.microbenchmarks.scorer import Scorer
from benchmarks.microbenchmarks.text_windows import NOVEL, read_text, text_windows
from benchmarks.serving.command import new_parser, run, write_figures
from benchmarks.serving.engines import model_path
from benchmarks.serving.table import print_columns
from engine.interface.config import EngineConfig
from engine.interface.setting import settings_of
from engine.interface.types import Progress
from engine.models.open_model import OpenModel, open_model
from server.model_sources.cache_folder import ModelStoreError
from server.startup.progress import ProgressReporter
from server.startup.settings import DEFAULT_MODEL
from server.text.text_model import TextModel

PROGRAM = "benchmarks.perplexity"
EXACT = "float32,matmul_backend=xla,attention_backend=xla"
NUM_RESAMPLES = 10_000
COLUMNS = ("way", "tokens", "perplexity", "difference", "interval", "seconds")
LEGEND = (
    "difference: of the perplexity from the first way's; interval: 95 %, windows resampled in pairs;\n"
    "seconds: for all windows, without loading and compiling"
)


class Way(NamedTuple):
    name: str
    config: EngineConfig

    @classmethod
    def parse(cls, name: str) -> Way:
        """Parses `DTYPE[,SETTING=VALUE...]`; raises argparse.ArgumentTypeError."""
        dtype, *others = name.split(",")
        settings = {name: setting for name, setting in settings_of(EngineConfig).items() if not setting.is_switch}
        values: dict[str, Any] = {"dtype": dtype}
        for other in others:
            setting, _, value = other.partition("=")
            if setting not in settings:
                raise argparse.ArgumentTypeError(f"{name}: no setting {setting!r}; there are {', '.join(settings)}")
            try:
                values[setting] = settings[setting].parse(value)
            except ValueError as error:
                raise argparse.ArgumentTypeError(f"{name}: {setting} is {value!r}; {error}") from error
        try:
            return cls(name, EngineConfig(**values))
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{name}: {error}") from error


@dataclass(frozen=True, slots=True)
class Score:
    way: str
    log_likelihoods: np.ndarray  # float64[num_windows], means over each window's predicted tokens
    num_tokens: int  # predicted in all
    seconds: float  # for all windows

    @property
    def perplexity(self) -> float:
        return math.exp(-self.log_likelihoods.mean())

    def difference(self, reference: Score) -> float:
        """How much higher the perplexity is than the reference's, as a share of that."""
        return math.expm1((reference.log_likelihoods - self.log_likelihoods).mean())

    def difference_interval(self, reference: Score) -> tuple[float, float]:
        """The 95 % interval of `difference` by the bootstrap (Efron, 1979) over windows, each with both scores."""
        losses = reference.log_likelihoods - self.log_likelihoods
        drawn = np.random.default_rng(0).integers(0, len(losses), (NUM_RESAMPLES, len(losses)))
        low, high = np.expm1(np.percentile(losses[drawn].mean(axis=1), [2.5, 97.5]))
        return float(low), float(high)

    def to_dict(self, reference: Score) -> dict[str, Any]:
        return {
            "way": self.way,
            "num_tokens": self.num_tokens,
            "perplexity": self.perplexity,
            "difference": self.difference(reference),
            "difference_interval": self.difference_interval(reference),
            "seconds": self.seconds,
        }


def score(way: Way, model: OpenModel, windows: np.ndarray, progress: Progress) -> Score:
    """Loads the model in this way and scores every window, int32[num_windows, window_size]."""
    num_windows, window_size = windows.shape
    scorer = Scorer(model, way.config, window_size, progress)
    means = np.empty(num_windows, np.float64)
    start = time.perf_counter()
    for index, window in enumerate(windows):
        means[index] = scorer.log_likelihoods(window).mean(dtype=np.float64)
        progress(f"score {way.name}", index + 1, num_windows)
    return Score(way.name, means, num_windows * (window_size - 1), time.perf_counter() - start)


def cells(score: Score, reference: Score) -> list[str]:
    """One line of the table, by COLUMNS."""
    difference, interval = "-", "-"
    if score is not reference:
        low, high = score.difference_interval(reference)
        difference, interval = f"{score.difference(reference):+.3%}", f"{low:+.3%}..{high:+.3%}"
    return [score.way, str(score.num_tokens), f"{score.perplexity:.4f}", difference, interval, f"{score.seconds:.1f}"]


def compare(options: argparse.Namespace) -> list[Score]:
    """Scores all ways and prints their table."""
    path = model_path(options.model)
    text_model, size = TextModel.load(path), options.window_size
    if size > text_model.context_length:
        raise ValueError(f"the window size is {size}; the model was trained for {text_model.context_length} tokens")
    text = read_text(options.text)
    windows = text_windows(text, text_model.tokenizer, num_windows=options.windows, window_size=size)
    model, scores = open_model(path), list[Score]()
    for way in options.ways:
        with ProgressReporter() as progress:
            scores.append(score(way, model, windows, progress))
    print_columns([COLUMNS, *(cells(each, scores[0]) for each in scores)])
    print(LEGEND)
    return scores


def ways_beyond(limit: float, scores: Sequence[Score]) -> list[str]:
    """Names of the ways whose perplexity is more than `limit` percent above the first one's."""
    return [each.way for each in scores if 100 * each.difference(scores[0]) > limit]


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = new_parser(PROGRAM, __doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a name, or the path of a GGUF file or a folder")
    parser.add_argument(
        "--ways", type=Way.parse, nargs="+", default=[Way.parse(EXACT), Way.parse(EngineConfig.dtype)],
        metavar="DTYPE[,SETTING=VALUE...]",
    )  # fmt: skip
    parser.add_argument("--text", type=Path, default=NOVEL, metavar="FILE", help="UTF-8, plain or .gz")
    parser.add_argument("--windows", type=int, default=40, metavar="N", help="spread evenly over the text")
    parser.add_argument("--window-size", type=int, default=512, metavar="N", help="in tokens")
    parser.add_argument("--limit", type=float, default=math.inf, metavar="PERCENT", help="fail beyond this difference")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = parse_arguments(arguments)
    try:
        scores = compare(options)
    except (ModelStoreError, ValueError, OSError) as error:
        sys.exit(f"{PROGRAM}: {error}")
    write_figures(options.json, PROGRAM, arguments, scores=[each.to_dict(scores[0]) for each in scores])
    beyond = ways_beyond(options.limit, scores)
    if beyond:
        print(f"beyond the limit of {options.limit:g} %: {', '.join(beyond)}")
    return 1 if beyond else 0


if __name__ == "__main__":
    run(PROGRAM, main)
