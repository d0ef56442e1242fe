"""Writes a GGUF file (Q4_K_M) of random weights in the shape of a known model, for a comparison on equal terms.

    python -m benchmarks.models llama-3.2-1b llama-1b.gguf
    python -m benchmarks.models qwen3-4b qwen3-4b.gguf
    python -m benchmarks.models qwen3-30b-a3b qwen3-moe.gguf --layers 4

Then both servers are given the same file:

    python -m benchmarks.peers --llama-server build/bin/llama-server --model llama-1b.gguf \\
        --concurrency 1 8 32 --llama-slots 32 --prefill-tokens 2048
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from benchmarks.models.random_file import write_random
from benchmarks.models.shapes import SHAPES
from benchmarks.serving.command import at_least_one, new_parser, run
from benchmarks.serving.engines import model_path
from server.startup.progress import ProgressReporter
from server.startup.settings import DEFAULT_MODEL

PROGRAM = "benchmarks.models"
VOCABULARY_TOKENS = 49_152  # of the default model, whose vocabulary the file gets


def main(arguments: Sequence[str]) -> int:
    parser = new_parser(PROGRAM, __doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("file", type=Path)
    parser.add_argument("--layers", type=at_least_one, metavar="N", help="fewer or more than the model has")
    parser.add_argument("--vocab-size", type=at_least_one, metavar="N", help="tokens, instead of the model's number")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    shape = SHAPES[options.shape]
    shape = dataclasses.replace(
        shape, num_layers=options.layers or shape.num_layers, vocab_size=options.vocab_size or shape.vocab_size
    )
    if shape.vocab_size < VOCABULARY_TOKENS:
        parser.error(f"--vocab-size must be at least {VOCABULARY_TOKENS}, as many as the vocabulary has")
    vocabulary = model_path(DEFAULT_MODEL)
    with ProgressReporter() as progress:
        write_random(
            options.file, f"random {options.shape}", shape, vocabulary,
            lambda done, total: progress("write tensors", done, total), options.seed,
        )  # fmt: skip
    return 0


if __name__ == "__main__":
    run(PROGRAM, main)
