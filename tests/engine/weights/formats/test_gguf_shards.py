"""GGUF models in shards: the same tensors as in one file, and a clear error where a shard does not fit."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFWriter

from engine.interface.errors import ModelError
from engine.models.open_model import open_model
from engine.weights.formats.gguf_shards import ShardName, shard_paths
from engine.weights.formats.gguf_tensors import GGUFTensors
from tests.gguf_tensors import write_random_model

COUNT = 3


def write_shards(folder: Path, *, seed: int = 0) -> Path:
    """A model of 21 tensors in three shards; returns the path of the first."""
    write_random_model(folder / "model.gguf", lambda name: Kind.Q8_0, seed=seed, max_shard_tensors=8)
    return shard(folder, 1)


def shard(folder: Path, number: int) -> Path:
    return folder / f"model-{number:05d}-of-{COUNT:05d}.gguf"


def write_shard(path: Path, *, tensor: str = "token_embd.weight", **fields: int) -> Path:
    """A shard of one tensor with any fields: `no`, `count`, `tensors_count`."""
    writer = GGUFWriter(path, "llama")
    for name, value in fields.items():
        writer.add_uint32(f"split.{name.replace('_', '.')}", value)
    writer.add_tensor(tensor, np.zeros(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_shards_have_the_tensors_of_the_whole(tmp_path: Path) -> None:
    whole = GGUFTensors(write_random_model(tmp_path / "whole.gguf", lambda name: Kind.Q8_0))
    first = write_shards(tmp_path)
    assert not (tmp_path / "model.gguf").exists()
    shards = GGUFTensors(first)
    assert shards.names == whole.names
    for name in whole.names:
        ours, theirs = shards.tensor(name), whole.tensor(name)
        assert ours is not None
        assert theirs is not None
        np.testing.assert_array_equal(ours.float32(), theirs.float32())
    assert open_model(first).config == open_model(tmp_path / "whole.gguf").config


@pytest.mark.parametrize("number", [2, 3])
def test_a_missing_shard_is_named(tmp_path: Path, number: int) -> None:
    first = write_shards(tmp_path)
    shard(tmp_path, number).unlink()
    with pytest.raises(ModelError, match=rf"model-0000{number}-of-00003.gguf is missing.*model-00001-of-00003.gguf"):
        GGUFTensors(first)


def test_a_shard_that_is_cut_short_is_named(tmp_path: Path) -> None:
    first = write_shards(tmp_path)
    shard(tmp_path, 2).write_bytes(shard(tmp_path, 2).read_bytes()[:-5000])
    with pytest.raises(ModelError, match=r"model-00002-of-00003.gguf .*cut short"):
        GGUFTensors(first)


def test_a_later_shard_is_not_the_first(tmp_path: Path) -> None:
    write_shards(tmp_path)
    with pytest.raises(ModelError, match=r"is shard 2 of 3; give the first, model-00001-of-00003.gguf"):
        GGUFTensors(shard(tmp_path, 2))


def test_shards_in_each_others_place(tmp_path: Path) -> None:
    first = write_shards(tmp_path)
    shutil.copy(shard(tmp_path, 3), shard(tmp_path, 2))
    with pytest.raises(ModelError, match=r"model-00002-of-00003.gguf: the field split.no is 2.*must be 1"):
        GGUFTensors(first)


def test_a_renamed_shard(tmp_path: Path) -> None:
    first = write_shards(tmp_path).rename(tmp_path / "renamed.gguf")
    with pytest.raises(ModelError, match=r"is a shard of 3 \(split.count\), but is not called NAME-00001-of-00003"):
        GGUFTensors(first)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({}, {}, r"00001.*split.no is missing; .*must be 0"),
        ({"no": 0}, {}, r"00001.*split.count is missing; .*must be 2"),
        ({"no": 0, "count": 3}, {}, r"00001.*split.count is 3; .*must be 2"),
        ({"no": 0, "count": 0}, {}, r"00001.*split.count is 0; it must be an integer from 1"),
        ({"no": 0, "count": 2}, {"no": 1, "count": 4}, r"00002.*split.count is 4; .*must be 2"),
        ({"no": 0, "count": 2}, {"no": 1, "count": 2}, r"00002.* has the tensor 'token_embd.weight', which an earlier"),
    ],
)
def test_fields_that_do_not_fit_the_names(
    tmp_path: Path, first: dict[str, int], second: dict[str, int], message: str
) -> None:
    path = write_shard(tmp_path / "bad-00001-of-00002.gguf", **first)
    write_shard(tmp_path / "bad-00002-of-00002.gguf", **second)
    with pytest.raises(ModelError, match=message):
        GGUFTensors(path)


@pytest.mark.parametrize("stated", [1, 3])
def test_more_or_fewer_tensors_than_stated(tmp_path: Path, stated: int) -> None:
    path = write_shard(tmp_path / "bad-00001-of-00002.gguf", no=0, count=2, tensors_count=stated)
    write_shard(tmp_path / "bad-00002-of-00002.gguf", tensor="output.weight", no=1, count=2, tensors_count=stated)
    with pytest.raises(ModelError, match=f"split.tensors.count is {stated}, but the shards have 2 tensors"):
        GGUFTensors(path)


def test_one_shard_may_have_any_name(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "only.gguf", no=0, count=1, tensors_count=1)
    assert GGUFTensors(path).names == {"token_embd.weight"}


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("a-00002-of-00003.gguf", ShardName("a", 2, 3)),
        ("a-00001-of-00002-00003-of-00004.gguf", ShardName("a-00001-of-00002", 3, 4)),
        ("a-00001-of-00001.gguf", None),
        ("a-00000-of-00003.gguf", None),
        ("a-00004-of-00003.gguf", None),
        ("a-1-of-3.gguf", None),
        ("-00001-of-00003.gguf", None),
        ("a-00001-of-00003.gguf.part", None),
    ],
)
def test_names_of_shards(name: str, parsed: ShardName | None) -> None:
    assert ShardName.parse(name) == parsed


def test_the_paths_of_all_shards(tmp_path: Path) -> None:
    expected = [tmp_path / f"a-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    assert shard_paths(expected[1]) == expected
    assert shard_paths(tmp_path / "whole.gguf") == [tmp_path / "whole.gguf"]
