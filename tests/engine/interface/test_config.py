"""The engine's configuration: its fields are settings, and what contradicts itself is refused."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from typing import Any

import pytest

from engine.interface.config import EngineConfig
from engine.interface.setting import settings_of
from tests.patience import PATIENCE_S


def test_every_field_is_a_setting_but_what_the_model_and_the_machine_decide() -> None:
    assert {item.name for item in fields(EngineConfig)} - settings_of(EngineConfig).keys() == {
        "adapters",
        "compilation_cache",
        "eos_token_ids",
    }


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"dtype": "float16"}, "dtype is 'float16'; it must be auto, float32 or bfloat16"),
        ({"quantize": "int3"}, "quantize is 'int3'; it must be int8 or int4"),
        ({"attention_backend": "x"}, "attention_backend is 'x'; it must be auto, native or xla"),
        ({"max_model_len": 1}, "max_model_len is 1; it must be at least 2"),
        ({"max_num_seqs": "8"}, "max_num_seqs is '8'; it must be an integer"),
        ({"page_size": 0}, "page_size is 0; it must be at least 1"),
        ({"num_pages": 1}, "num_pages is 1; it must be at least 2 (page 0 is the null page)"),
        ({"kv_cache_bytes": 0}, "kv_cache_bytes is 0; it must be at least 1"),
        ({"memory_utilization": 0.96}, "memory_utilization is 0.96; it must be above 0 and at most 0.95"),
        ({"kv_cache_dtype": "int4"}, "kv_cache_dtype is 'int4'; it must be auto, float32, bfloat16, int16 or int8"),
        ({"request_timeout": 0}, "request_timeout is 0; it must be above 0 seconds"),
        ({"queue_timeout": float("nan")}, "queue_timeout is nan; it must be above 0 seconds"),
        ({"decode_chunk": 0}, "decode_chunk is 0; it must be at least 1"),
        ({"max_num_batched_tokens": 63}, "max_num_batched_tokens is 63; it must be at least 64 (prompts are computed"),
        ({"target_gap": -1.0}, "target_gap is -1.0; it must be 0 or a number of milliseconds"),
        ({"target_gap": float("nan")}, "target_gap is nan; it must be 0 or a number of milliseconds"),
        ({"tensor_parallel": 0}, "tensor_parallel is 0; it must be at least 1"),
        ({"tensor_parallel": 2, "prefix_cache_dir": "kept"}, "tensor_parallel is 2 and prefix_cache_dir kept"),
        (
            {"prefix_cache_peers": ("a:0",)},
            "prefix_cache_peers is ('a:0',); there may be 16, and each must",
        ),
        ({"prefix_cache_key": "short"}, "prefix_cache_key is not what it should be; it must have at least 16 visible"),
        ({"prefix_cache_listen": "a:1"}, "prefix_cache_listen is 'a:1', but prefix_cache_dir is missing"),
        (
            {"prefix_cache_peers": ("a:1",), "prefix_cache_dir": "x"},
            "prefix_cache_peers is ('a:1',), but prefix_cache",
        ),
        ({"num_hosts": 0}, "num_hosts is 0; it must be at least 1"),
        ({"num_hosts": 2, "tensor_parallel": 2}, "num_hosts is 2, but coordinator is missing"),
        ({"coordinator": "node-0"}, "coordinator is 'node-0'; it must be HOST:PORT with a port from 1 to 65534"),
        ({"coordinator": "node-0:65535"}, "coordinator is 'node-0:65535'; it must be HOST:PORT"),
        ({"num_hosts": 2, "coordinator": "[::1]:9000"}, "tensor_parallel is 1 and num_hosts 2; each host must have"),
        (
            {"num_hosts": 2, "tensor_parallel": 2, "coordinator": "[::1]:9000", "host_index": 1},
            "host_index is 1, but coordinator_key is missing; it must be that of host 0",
        ),
        ({"coordinator_key": "short"}, "coordinator_key is not what it should be; it must have at least 16 visible"),
        ({"host_index": 1}, "host_index is 1; with num_hosts 1 it must be less"),
        ({"quantize": "int8", "dtype": "bfloat16"}, "quantize is int8 and dtype bfloat16; quantised weights need"),
        ({"eos_token_ids": tuple(range(65))}, "eos_token_ids has 65 entries; at most 64 are allowed"),
    ],
)
def test_what_is_refused_is_named_with_its_limit(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011  (the words are compared below)
        EngineConfig(**given)
    assert str(error.value).startswith(words)


def test_a_step_of_an_encoder_has_more_tokens_unless_their_number_is_given() -> None:
    usual, given = EngineConfig(), EngineConfig(max_num_batched_tokens=128)
    assert (usual.batched_tokens(), usual.batched_tokens(is_encoder=True)) == (256, 1024)
    assert given.batched_tokens() == given.batched_tokens(is_encoder=True) == 128


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "msgspec", None)  # as if it were not installed
    EngineConfig().check_packages()
    config = EngineConfig(kv_events="tcp://127.0.0.1:5557")
    with pytest.raises(ValueError, match=r"kv_events is 'tcp:.*needs the package msgspec.*eagre\[kv-events\]"):
        config.check_packages()


def test_an_unknown_keyword_is_told_what_there_is() -> None:
    assert EngineConfig.from_keywords({"decode_chunk": 4}) == EngineConfig(decode_chunk=4)
    with pytest.raises(TypeError, match=r"no setting 'max_seqs'; it has dtype, .*max_num_seqs, .*eos_token_ids$"):
        EngineConfig.from_keywords({"max_seqs": 4})


def test_it_needs_neither_jax_nor_a_command_line() -> None:
    script = (
        "import sys, engine.interface.config\n"
        "assert not {'jax', 'numpy', 'argparse', 'asyncio'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=PATIENCE_S)
