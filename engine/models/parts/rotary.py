"""The rotary embedding: its tables of angles, and how models stretch them over longer contexts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from engine.interface.errors import ModelError

# A file may have numbers that are no float32. What comes of them is looked at in the end, by `_rotary`.
_unwarned = np.errstate(divide="ignore", over="ignore", invalid="ignore")


@dataclass(frozen=True)
class Rotary:
    """One table of angles, the same for every layer that uses it."""

    frequencies: tuple[float, ...]  # radians a position of each pair of features; rotary_dim / 2 float32 values
    magnitude: float = 1.0  # multiplies cosines and sines, and so the scores by its square
    # Of each pair of features, the axis of M-RoPE by which it is rotated; empty: there is one position alone.
    axes: tuple[int, ...] = ()

    @property
    def rotary_dim(self) -> int:
        """Features of a head that are rotated, the first ones."""
        return 2 * len(self.frequencies)


NO_ROTARY = Rotary(())  # of models that turn nothing by its position

# Of a head. A configuration keeps a number for each pair of its features, so a damaged size must not reach far.
MAX_HEAD_DIM = 1 << 14


def rotary_frequencies(rotary_dim: int, theta: float) -> np.ndarray:
    """Radians a position of each pair of features, float32[rotary_dim / 2] (Su et al., "RoFormer", 2021)."""
    exponents = np.arange(0, rotary_dim, 2, dtype=np.float32) / rotary_dim
    return (1.0 / np.float32(theta) ** exponents).astype(np.float32)


@_unwarned
def plain(rotary_dim: int, theta: float) -> Rotary:
    """Without stretching."""
    return _rotary(rotary_frequencies(rotary_dim, theta))


@_unwarned
def divided(rotary_dim: int, theta: float, factors: Sequence[float] | float, magnitude: float = 1.0) -> Rotary:
    """Each frequency divided by its factor, or all by one.

    Sources: Chen et al., "Extending context window of large language models via position interpolation", 2023; Ding et
    al., "LongRoPE", 2024 (a factor for each).
    """
    return _rotary(rotary_frequencies(rotary_dim, theta) / np.asarray(factors, np.float32), magnitude)


@_unwarned
def llama3(
    rotary_dim: int, theta: float, *, factor: float, low_freq_factor: float, high_freq_factor: float,
    original_context: int,
) -> Rotary:  # fmt: skip
    """Low frequencies divided by a factor, high ones kept, those between interpolated (Llama 3.1's model card, 2024).

    Low are frequencies that turn fewer times than `low_freq_factor` within the original context, high those that turn
    more often than `high_freq_factor`.
    """
    frequencies = rotary_frequencies(rotary_dim, theta)
    turns = np.float32(original_context) / (np.float32(2 * math.pi) / frequencies)
    share = np.clip((turns - low_freq_factor) / (high_freq_factor - low_freq_factor), 0, 1).astype(np.float32)
    return _rotary((1 - share) * frequencies / np.float32(factor) + share * frequencies)


@_unwarned
def yarn(
    rotary_dim: int, theta: float, *, factor: float, original_context: int,
    beta_fast: float = 32.0, beta_slow: float = 1.0, is_truncated: bool = True, magnitude: float | None = None,
) -> Rotary:  # fmt: skip
    """Slow pairs of features interpolated, fast ones kept, a ramp between (Peng et al., "YaRN", 2023).

    Args:
        beta_fast, beta_slow: turns within the original context at which the ramp begins and ends.
        is_truncated: whether the ends of the ramp are moved outwards to whole pairs.
        magnitude: None: as the paper has it, by `yarn_magnitude`.
    """
    frequencies = rotary_frequencies(rotary_dim, theta)

    def pair_that_turns(number: float) -> float:
        length = original_context / (number * 2 * math.pi)
        if not 0 < length < math.inf:
            raise ModelError(f"in YaRN's ramp, features cannot turn {number} times within {original_context} tokens")
        return rotary_dim * math.log(length) / (2 * math.log(theta))

    low, high = pair_that_turns(beta_fast), pair_that_turns(beta_slow)
    if is_truncated:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    if low == high:
        high += 0.001  # as the reference implementation avoids a division by 0
    ramp = np.clip((np.arange(rotary_dim // 2, dtype=np.float32) - low) / (high - low), 0, 1).astype(np.float32)
    stretched = frequencies / np.float32(factor) * ramp + frequencies * (1 - ramp)
    return _rotary(stretched, yarn_magnitude(factor) if magnitude is None else magnitude)


def yarn_magnitude(factor: float, weight: float = 1.0) -> float:
    """The multiplier of cosines and sines where the context is stretched by a factor."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def longrope_magnitude(factor: float, original_context: int) -> float:
    """The same by Ding et al., "LongRoPE", 2024."""
    return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original_context))


def rotations(positions: jax.Array, *frequencies: np.ndarray) -> jax.Array:
    """Cosines and then sines of the angles at int32[num_tokens] positions, float32[num_tables, num_tokens, rotary_dim].

    Each table has frequencies float32[rotary_dim / 2].
    """
    angles = positions.astype(jnp.float32)[None, :, None] * np.stack(frequencies)[:, None]
    return jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=-1)


def rotation_tables(positions: jax.Array, tables: Sequence[Rotary]) -> jax.Array:
    """As `rotations`, with the tables' magnitudes; without tables, one that nothing uses.

    Positions of M-RoPE are int32[num_tokens, axes].
    """
    if not tables:
        return jnp.zeros((1, len(positions), 2), jnp.float32)
    frequencies = [np.asarray(table.frequencies, np.float32) for table in tables]
    if positions.ndim > 1:  # of M-RoPE
        axes = np.array([table.axes or (0,) * len(table.frequencies) for table in tables])
        angles = positions.astype(jnp.float32)[:, axes].transpose(1, 0, 2) * np.stack(frequencies)[:, None]
        made = jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=-1)
    else:
        made = rotations(positions, *frequencies)
    magnitudes = np.asarray([table.magnitude for table in tables], np.float32)
    return made if (magnitudes == 1).all() else made * magnitudes[:, None, None]


def rotated(heads: jax.Array, rotation: jax.Array) -> jax.Array:
    """Heads, [num_tokens, num_heads, head_dim], whose first features are rotated by [num_tokens, rotary_dim]."""
    rotary_dim = rotation.shape[-1]
    cos, sin = jnp.split(rotation[:, None], 2, axis=-1)
    first, second = jnp.split(heads[..., :rotary_dim].astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(heads.dtype)
    return jnp.concatenate([turned, heads[..., rotary_dim:]], axis=-1)


def _rotary(frequencies: np.ndarray, magnitude: float = 1.0) -> Rotary:
    """Raises ModelError if a base or a factor of a file is too small for float32."""
    if not np.isfinite(frequencies).all():
        raise ModelError("the base or the factors of the rotary embedding give frequencies that are not finite")
    return Rotary(tuple(frequencies.astype(np.float32).tolist()), magnitude)
