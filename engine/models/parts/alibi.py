"""Biases of scores by distance, ALiBi (Press, Smith and Lewis, "Train Short, Test Long", 2021)."""

import dataclasses
from typing import TypeVar

from engine.models.parts.decoder_config import DecoderConfig

MOST_BIAS = 8.0  # the exponent of the last head's slope; of nearly all models

Config = TypeVar("Config", bound=DecoderConfig)


def distance_slopes(num_heads: int, most_bias: float = MOST_BIAS) -> tuple[float, ...]:
    """Of each head, what a position between two tokens takes from their score.

    They are powers of one number where the number of heads is a power of two. Else those of the next lower power of two
    come first, and then every second one of the next higher.
    """
    power = 1 << (num_heads.bit_length() - 1)  # of two, at most the number of heads
    first = [2.0 ** (-most_bias * (head + 1) / power) for head in range(power)]
    others = [2.0 ** (-most_bias / 2 * (2 * head + 1) / power) for head in range(num_heads - power)]
    return tuple(first + others)


def with_alibi(usual: Config, *, most_bias: float = MOST_BIAS, rounds_biases: bool = False) -> Config:
    """The configuration with biases by distance in the place of a rotary embedding."""
    return dataclasses.replace(
        usual, rotary=(), tables=(-1,) * usual.num_layers,
        distance_slopes=distance_slopes(usual.num_heads, most_bias), rounds_biases=rounds_biases,
    )  # fmt: skip
