"""What configurations of PLaMo may say beside what the goldens say, and what is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.interface.errors import ModelError
from engine.models.parts.decoder_config import DecoderConfig
from engine.models.parts.rotary import plain
from tests.engine.models.test_configurations import opened


def config_of(folder: Path, name: str, changes: dict[str, Any], left_out: tuple[str, ...] = ()) -> DecoderConfig:
    config = opened(folder, name, changes, left_out).model.config
    assert isinstance(config, DecoderConfig)
    return config


def test_windows_of_plamo2_count_the_tokens_before_a_query(tmp_path: Path) -> None:
    config = config_of(tmp_path, "plamo2", {})
    assert (config.windows, config.tables) == ((31, 0), (1, 0))
    assert config.rotary == (plain(32, 5000.0), plain(32, 500.0))


def test_layers_of_plamo2_that_all_see_everything_rotate_alike(tmp_path: Path) -> None:
    config = config_of(tmp_path, "plamo2", {"full_attention_idx": [1, 4]}, ("rope_local_theta",))
    assert (config.windows, config.tables, config.rotary) == ((0, 0), (0, 0), (plain(32, 5000.0),))


def test_windows_of_plamo3_count_the_tokens_before_a_query_where_rotations_are_not_scaled(tmp_path: Path) -> None:
    assert config_of(tmp_path, "plamo3", {}).windows == (30, 0, 30, 0)
    config = config_of(tmp_path, "plamo3", {}, ("rope_scaling_factor",))
    assert config.windows == (31, 0, 31, 0)
    assert config.rotary == (plain(32, 5000.0), plain(32, 500.0))


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("plamo2", {"full_attention_idx": [6]}, r"full_attention_idx is \[6\]; it must list layers, from 0 to 5"),
        ("plamo2", {"full_attention_idx": "1"}, "full_attention_idx is"),
        ("plamo2", {"mamba_step": 1}, "mamba_step is 1"),
        ("plamo2", {"mamba_enabled": False}, "mamba_enabled is false"),
        ("plamo2", {"mamba_d_conv": 65}, "a convolution of 65"),
        ("plamo2", {"mamba_num_heads": 1 << 30}, f"{1 << 30} heads of 32 features"),
        ("plamo2", {"attention_window_size": 0}, "attention_window_size is 0"),
        ("plamo2", {"hidden_size_per_head": 31}, "the head dimension is 31"),
        ("plamo3", {"scale_embedding": True}, "scale_embedding is true"),
        ("plamo3", {"sliding_window_pattern": 0}, "sliding_window_pattern is 0"),
        ("plamo3", {"initial_context_length": None}, "lacks initial_context_length"),
        ("plamo3", {"rope_theta": 0.5}, "for YaRN it must be above 1"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, name: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        opened(tmp_path, name, changes)
