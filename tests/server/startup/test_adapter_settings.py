"""The memory for the adapters of `--lora`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from server.startup.adapter_settings import limits_of
from server.startup.settings import LARGEST_LORA_RANK, ServerSettings
from tests.engine.adapters.peft_adapters import write_adapter


@pytest.mark.parametrize(("rank", "expected"), [(4, 4), (10**9, LARGEST_LORA_RANK)])
def test_a_file_that_says_a_huge_rank_takes_no_huge_memory(tmp_path: Path, rank: int, expected: int) -> None:
    pair = (np.zeros((4, 16), np.float32), np.zeros((16, 4), np.float32))
    folder = write_adapter(tmp_path / "a", {"model.layers.0.self_attn.q_proj": pair}, {"r": rank})
    limits = limits_of(ServerSettings(lora=(str(folder),)))
    assert (limits.num_slots, limits.max_rank) == (1, expected)
