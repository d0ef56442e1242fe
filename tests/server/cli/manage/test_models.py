"""`eagre models`: the list of models with the memory that each would take."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFWriter
from huggingface_hub import constants

from server.cli import main as cli
from server.model_sources.builtin_models import BUILTIN_MODELS
from tests.gguf_tensors import write_random_model
from tests.golden.pictures.tiny_folder import write_tiny_folder


@pytest.fixture(autouse=True)
def nothing_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No model of the Hub is here, and no built-in one."""
    monkeypatch.setenv("EAGRE_CACHE", str(tmp_path / "eagre"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


def listing(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """What `--json` gives, without the built-in models."""
    assert cli.main(["models", "--json", *arguments]) == 0
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    builtins, content["models"] = content["models"][: len(BUILTIN_MODELS)], content["models"][len(BUILTIN_MODELS) :]
    assert [model["name"] for model in builtins] == list(BUILTIN_MODELS)
    return content


def write_huge_model(path: Path) -> int:
    """A Llama of which only the header is on the disk; returns the bytes that its weights would take there."""
    hidden, intermediate, num_layers, vocab_size = 65_536, 65_536, 2, 1024
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(num_layers)
    writer.add_context_length(4096)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(intermediate)
    writer.add_head_count(512)
    writer.add_layer_norm_rms_eps(1e-5)
    matrices = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (vocab_size, hidden), "output_norm": (hidden,)}
    for layer in range(num_layers):
        shapes |= {f"blk.{layer}.{name}": (hidden, hidden) for name in matrices}
        shapes |= {f"blk.{layer}.{name}": (hidden,) for name in ("attn_norm", "ffn_norm")}
    total = 0
    for name, shape in shapes.items():
        num_bytes = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        writer.add_tensor_info(f"{name}.weight", list(shape), "float32", num_bytes, raw_dtype=Kind.F32)
        total += num_bytes
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    os.truncate(path, path.stat().st_size + total + 64)  # the rest is a hole
    return total


def test_what_a_model_takes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_random_model(folder / "tiny.gguf", lambda name: Kind.Q8_0)
    content = listing(capsys, str(folder))
    (model,) = content["models"]
    assert (model["name"], model["source"], model["path"]) == (str(path), "file", str(path))
    assert (model["architecture"], model["context_length"]) == ("llama", 512)
    assert 0.8 * path.stat().st_size < model["weight_bytes"] < 4 * path.stat().st_size
    assert model["cache_bytes_per_1000_tokens"] > 0
    assert model["fits"] is True
    assert model["error"] is None
    assert content["memory"]["usable"] < content["memory"]["total"]


def test_settings_of_the_engine_count(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_random_model(folder / "tiny.gguf", lambda name: Kind.Q8_0)
    (as_stored,) = listing(capsys, str(folder))["models"]
    monkeypatch.setenv("EAGRE_DTYPE", "float32")
    (exact,) = listing(capsys, str(folder))["models"]
    assert exact["weight_bytes"] > as_stored["weight_bytes"]
    monkeypatch.setenv("EAGRE_DTYPE", "float99")
    assert cli.main(["models"]) == 2
    assert "float99" in capsys.readouterr().err


def test_a_model_larger_than_the_memory_does_not_fit_and_is_not_read(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = write_huge_model(folder / "huge.gguf")
    (model,) = listing(capsys, str(folder / "huge.gguf"))["models"]
    assert model["error"] is None
    assert model["weight_bytes"] >= stored // 2  # floats may become bfloat16
    assert model["fits"] is False


def test_broken_models_are_listed_with_their_errors(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_random_model(folder / "cut.gguf", lambda name: Kind.Q8_0)
    path.write_bytes(path.read_bytes()[:-10])
    (folder / "text.gguf").write_text("no model")
    (folder / "folder").mkdir()
    (folder / "folder" / "config.json").write_text('{"architectures": ["NobodysLMHeadModel"]}')
    models = listing(capsys, str(folder), str(folder / "none.gguf"))["models"]
    errors = {Path(model["name"]).name: model["error"] for model in models}
    assert errors.keys() == {"cut.gguf", "folder", "text.gguf", "none.gguf"}
    assert "cut short" in errors["cut.gguf"]
    assert "NobodysLMHeadModel" in errors["folder"]
    assert "is no GGUF file" in errors["text.gguf"]
    assert "no such file" in errors["none.gguf"]
    assert all(model["fits"] is None and model["weight_bytes"] is None for model in models)


def test_the_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = write_random_model(folder / "tiny.gguf", lambda name: Kind.Q8_0)
    (folder / "text.gguf").write_text("no model")
    assert cli.main(["models", str(tiny), str(folder / "text.gguf")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["NAME", "SOURCE", "QUANTIZATION", "PARAMETERS", "WEIGHTS", "1,000", "TOKENS", "FITS"]
    assert lines[1].split() == ["smollm2-135m-instruct", "built-in", "-", "-", "-", "-", "yes"]
    assert (
        lines[2] == "  a first look: small and fast, and soon wrong; not here yet; `eagre pull smollm2-135m-instruct` "
        "fetches 98.4 MB, under the Apache License 2.0; it takes about 120 MB of memory"
    )
    assert lines[3].split()[:2] == ["gemma-3-270m", "built-in"]
    assert "fetches 253 MB, under the Gemma Terms of Use" in lines[4]
    assert lines[5].split()[:2] == ["qwen2.5-coder-0.5b", "built-in"]
    assert "fetches 491 MB, under the Apache License 2.0; it takes about 650 MB of memory" in lines[6]
    assert lines[7].split()[:2] == ["qwen2.5-coder-1.5b", "built-in"]
    assert "fetches 1.1 GB, under the Apache License 2.0; it takes about 1.2 GB of memory" in lines[8]
    assert lines[9].split()[:2] == ["all-minilm-l6-v2", "built-in"]
    assert lines[11].split()[:2] == [str(tiny), "file"]
    assert lines[11].split()[-1] == "yes"
    assert lines[12].split()[0] == str(folder / "text.gguf")
    assert "is no GGUF file" in lines[13]
    assert "of memory are available now" in lines[15]


def test_a_model_that_sees_says_what_a_picture_costs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny_folder(folder)
    (seeing,) = listing(capsys, str(folder))["models"]
    assert (seeing["modalities"], seeing["image_tokens"]) == (["text", "image"], 16)
    assert 0 < seeing["encoder_bytes"] < seeing["weight_bytes"]
    assert cli.main(["models", str(folder)]) == 0
    assert "sees: a picture takes 16 tokens, and its encoder is" in capsys.readouterr().out
    write_random_model(folder.parent / "model.gguf", lambda name: Kind.Q8_0)
    (other,) = listing(capsys, str(folder.parent / "model.gguf"))["models"]
    assert (other["modalities"], other["image_tokens"], other["encoder_bytes"]) == (["text"], 0, 0)
