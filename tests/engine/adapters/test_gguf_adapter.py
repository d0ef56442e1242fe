"""GGUF files of adapters: the same pairs as those of the PEFT folders that they were made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter, ReaderTensor

from engine.adapters.gguf_adapter import GgufAdapter, open_adapter
from engine.adapters.peft_folder import PeftFolder
from engine.adapters.targets import AdapterTarget, targets_of
from engine.interface.errors import ModelError
from engine.models.open_model import open_model
from tests.engine.adapters.peft_adapters import ALL, pairs_of, write_adapter
from tests.engine.models.test_architectures import GOLDENS
from tests.golden.adapters.converted import CONFIG, FILE, converted_pairs, write_base

Pairs = Mapping[str, tuple[np.ndarray, np.ndarray]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("llama") / "base")


@pytest.fixture(scope="module")
def targets(model: Path) -> tuple[AdapterTarget, ...]:
    return targets_of(open_model(model).model)


def permuted(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """The rows of queries or keys as llama.cpp's converter orders them for Llama."""
    halves = rows.reshape(num_heads, 2, rows.shape[0] // num_heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def write_gguf_adapter(path: Path, pairs: Pairs, alpha: float = 8.0, kind: str = "adapter", **more: np.ndarray) -> Path:
    config = GOLDENS["llama"]["config"]
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    writer = GGUFWriter(path, "llama")
    writer.add_type(kind)
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", alpha)
    for module, (down, up) in pairs.items():
        last = module.rpartition(".")[2]
        name = names.get_name(module) + ".weight"
        writer.add_tensor(f"{name}.lora_a", down)
        writer.add_tensor(f"{name}.lora_b", np.ascontiguousarray(permuted(up, heads[last]) if last in heads else up))
    for name, tensor in more.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_file_has_the_pairs_of_the_folder_that_it_was_made_of(
    tmp_path: Path, model: Path, targets: tuple[AdapterTarget, ...]
) -> None:
    pairs = pairs_of(model, ALL, 4, 1)
    folder = PeftFolder(write_adapter(tmp_path / "a", pairs, {"r": 4, "lora_alpha": 8})).read(targets, 4, 8)
    file = open_adapter(write_gguf_adapter(tmp_path / "a.gguf", pairs))
    assert file.largest_rank == 4
    assert file.read(targets, 4, 8).digest == folder.digest


def rewritten(path: Path, order: Callable[[list[ReaderTensor]], list[ReaderTensor]]) -> Path:
    """The converted file with its tensors in another order, or with some of them."""
    reader = GGUFReader(FILE)
    writer = GGUFWriter(path, "llama")
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            writer.add_key_value(name, field.contents(), field.types[0])
    for tensor in order(list(reader.tensors)):
        writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


ORDERS: tuple[Callable[[list[ReaderTensor]], list[ReaderTensor]], ...] = (
    lambda tensors: tensors[::-1],
    lambda tensors: sorted(tensors, key=lambda each: each.name[::-1], reverse=True),  # all second halves first
)


def test_a_file_of_the_converter_has_the_pairs_of_its_folder(
    tmp_path: Path, model: Path, targets: tuple[AdapterTarget, ...]
) -> None:
    """Every third module of each kind, in whatever order the file has them."""
    folder = PeftFolder(write_adapter(tmp_path / "a", converted_pairs(model), CONFIG)).read(targets, 4, 8)
    assert set(folder.pairs) == {target.name for target in targets}
    assert open_adapter(FILE).read(targets, 4, 8).digest == folder.digest
    for index, order in enumerate(ORDERS):
        path = rewritten(tmp_path / f"{index}.gguf", order)
        assert [each.name for each in GGUFReader(path).tensors] != [each.name for each in GGUFReader(FILE).tensors]
        assert open_adapter(path).read(targets, 4, 8).digest == folder.digest


def test_a_file_with_half_a_pair_is_refused(tmp_path: Path, targets: tuple[AdapterTarget, ...]) -> None:
    path = rewritten(tmp_path / "a.gguf", lambda tensors: tensors[:-1])
    with pytest.raises(ModelError, match=r"is not complete: blk\.\d\.\w+ has no lora_b"):
        open_adapter(path).read(targets, 4, 8)


@pytest.mark.parametrize(
    ("alpha", "kind", "more", "message"),
    [
        (8.0, "model", {}, "is no low-rank adapter: general.type is 'model'"),
        (-1.0, "adapter", {}, "adapter.lora.alpha is -1.0"),
        (8.0, "adapter", {"blk.0.attn_norm.weight": np.ones(64, np.float32)}, "no half of a low-rank pair"),
        (8.0, "adapter", {"token_embd.weight.lora_a": np.ones((4, 64), np.float32)}, "changes token_embd"),
    ],
)
def test_files_that_are_not_served(
    tmp_path: Path, model: Path, targets: tuple[AdapterTarget, ...], alpha: float, kind: str,
    more: dict[str, np.ndarray], message: str,
) -> None:  # fmt: skip
    path = write_gguf_adapter(tmp_path / "a.gguf", pairs_of(model, ALL, 4, 1), alpha, kind, **more)
    with pytest.raises(ModelError) as refused:
        GgufAdapter(path).read(targets, 4, 8)
    assert message in str(refused.value)


def test_a_file_of_another_architecture_is_refused(tmp_path: Path, model: Path) -> None:
    adapter = GgufAdapter(write_gguf_adapter(tmp_path / "a.gguf", pairs_of(model, ALL, 4, 1)))
    adapter.check_architecture(("mistral", "llama"))
    with pytest.raises(ModelError, match="for the architecture 'llama', and the model is of 'qwen2'"):
        adapter.check_architecture(("qwen2",))
