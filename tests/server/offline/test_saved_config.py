"""Saving which model it is and how its engine is set up, and loading it from there."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import orjson
import pytest

from engine.interface.config import EngineConfig
from engine.interface.types import Progress
from server.model_sources.builtin_models import BUILTIN_MODELS
from server.model_sources.cache_folder import ModelStoreError
from server.model_sources.hub_records import HubRecord
from server.offline import llm as llm_module
from server.offline.llm import LLM
from server.offline.saved_config import FILE_NAME, SavedConfig, SavedLLMError
from server.startup.model_loader import LoadedModel
from server.startup.progress import silent
from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.model_plan import FakePlan
from tests.fakes.text_model import EOS, FakeTextModel

MODEL = "smollm2-135m-instruct"
BYTES = b"GGUF and then nothing of use"
FOLDER_FILES = {
    "tokenizer.json": b"[tokenizer]",
    "config.json": b"{config}",
    "model.safetensors": b"tensors",
    "a.jinja": b"{t}",
}


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(BYTES)
    return path


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, EngineConfig]]:
    """What was loaded: the model and its configuration; the engine is a fake."""
    loaded: list[tuple[str, EngineConfig]] = []

    def plan(model: str, configure: Any, progress: Progress) -> FakePlan:
        for done in range(3):
            progress("compile", done, 2)
        loaded.append((model, configure((EOS,))))
        return FakePlan(lambda _: LoadedModel(FakeEngineClient().client, FakeTextModel().model))

    monkeypatch.setattr(llm_module, "plan_with", plan)
    return loaded


def test_a_round_trip(model_file: Path, tmp_path: Path, loads: list[tuple[str, EngineConfig]]) -> None:
    with LLM(model_file, progress=False, max_num_seqs=3, seed=5, compilation_cache="here") as llm:
        assert llm.precompile() == 2
        assert llm.generate("abc").text == "abc"
        llm.save(tmp_path / "saved" / "deep")
    with LLM.load(tmp_path / "saved" / "deep", progress=False, compilation_cache="here", seed=6) as llm:
        assert llm.generate("abc").text == "abc"
    (_, first), (model, second) = loads
    assert Path(model) == model_file
    assert first == EngineConfig(max_num_seqs=3, seed=5, compilation_cache="here", eos_token_ids=(EOS,))
    assert second == EngineConfig(max_num_seqs=3, seed=6, compilation_cache="here", eos_token_ids=(EOS,))


def test_what_is_written(model_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = SavedConfig.of("tiny.gguf", EngineConfig(num_pages=9, compilation_cache="here")).write(tmp_path / "saved")
    content = orjson.loads(path.read_bytes())
    assert content["version"] == 1
    assert content["model"] == {
        "name": str(model_file),
        "sha256": hashlib.sha256(BYTES).hexdigest(),
        "size": len(BYTES),
    }
    assert content["engine"]["num_pages"] == 9
    assert "compilation_cache" not in content["engine"]
    assert path.stat().st_size < 2000


def test_a_built_in_model_keeps_its_name() -> None:
    saved = SavedConfig.of(MODEL, EngineConfig())
    assert (saved.model, saved.sha256, saved.size) == (MODEL, BUILTIN_MODELS[MODEL].sha256, BUILTIN_MODELS[MODEL].size)


def test_a_model_of_the_hub_keeps_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGRE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "tiny.gguf").write_bytes(BYTES)
    HubRecord("owner/name:Q8_0", str(tmp_path), ("tiny.gguf",), "tiny.gguf").write()
    saved = SavedConfig.of("owner/name:Q8_0", EngineConfig())
    assert (saved.model, saved.sha256, saved.size) == ("owner/name:Q8_0", hashlib.sha256(BYTES).hexdigest(), len(BYTES))


def test_all_shards_of_a_model_count(tmp_path: Path) -> None:
    shards = [tmp_path / f"big-0000{number}-of-00002.gguf" for number in (1, 2)]
    for number, path in enumerate(shards):
        path.write_bytes(b"GGUF %d" % number)
    saved = SavedConfig.of(str(shards[1]), EngineConfig())
    assert (saved.model, saved.size) == (str(shards[0]), 12)
    saved.check_model(str(shards[0]), silent)
    shards[1].write_bytes(b"GGUF 2")
    with pytest.raises(SavedLLMError, match="has the SHA-256"):
        saved.check_model(str(shards[0]), silent)


def test_another_model_is_refused(model_file: Path, tmp_path: Path, loads: list[tuple[str, EngineConfig]]) -> None:
    SavedConfig.of(str(model_file), EngineConfig()).write(tmp_path)
    model_file.write_bytes(BYTES[:-1] + b"?")
    with pytest.raises(SavedLLMError, match="has the SHA-256"):
        LLM.load(tmp_path, progress=False)
    model_file.write_bytes(BYTES + b"!")
    with pytest.raises(SavedLLMError, match=f"has {len(BYTES) + 1} bytes; the saved model has {len(BYTES)}"):
        LLM.load(tmp_path, progress=False)
    model_file.unlink()
    with pytest.raises(ModelStoreError, match="there is no such file"):
        LLM.load(tmp_path, progress=False)
    assert loads == []


def test_a_model_that_has_moved(model_file: Path, tmp_path: Path, loads: list[tuple[str, EngineConfig]]) -> None:
    SavedConfig.of(str(model_file), EngineConfig()).write(tmp_path)
    moved = model_file.rename(tmp_path / "moved.gguf")
    LLM.load(tmp_path, model=moved, progress=False).close()
    assert loads[0][0] == str(moved)


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """As far as a digest is concerned."""
    folder = tmp_path / "model"
    (folder / "onnx").mkdir(parents=True)
    for name, content in FOLDER_FILES.items():
        (folder / name).write_bytes(content)
    (folder / "README.md").write_text("of no use")
    (folder / "onnx" / "model.json").write_text("of no use")
    return folder


def test_a_round_trip_of_a_folder(model_folder: Path, loads: list[tuple[str, EngineConfig]]) -> None:
    """Saved beside the model itself."""
    with LLM(model_folder, progress=False, quantize="int8", compilation_cache="here") as llm:
        llm.save(model_folder)
        llm.save(model_folder)  # what was saved is no part of the model
    saved = SavedConfig.read(model_folder)
    listing = "".join(f"{hashlib.sha256(FOLDER_FILES[name]).hexdigest()}  {name}\n" for name in sorted(FOLDER_FILES))
    assert saved.model == str(model_folder)
    assert (saved.sha256, saved.size) == (
        hashlib.sha256(listing.encode()).hexdigest(),
        sum(map(len, FOLDER_FILES.values())),
    )
    (model_folder / "README.md").write_text("changed")
    LLM.load(model_folder, progress=False, compilation_cache="here").close()
    (_, first), (model, second) = loads
    assert (model, second) == (str(model_folder), first)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", b"[TOKENIZER]", "has the SHA-256"),
        ("chat_template.jinja", b"{{ x }}", r"has 36 bytes; the saved model has 29"),
        ("model.safetensors", None, r"has 22 bytes; the saved model has 29"),
    ],
)
def test_another_folder_is_refused(
    model_folder: Path, name: str, content: bytes | None, message: str, loads: list[tuple[str, EngineConfig]]
) -> None:
    SavedConfig.of(str(model_folder), EngineConfig()).write(model_folder / "saved")
    if content is None:
        (model_folder / name).unlink()
    else:
        (model_folder / name).write_bytes(content)
    with pytest.raises(SavedLLMError, match=message):
        LLM.load(model_folder / "saved", progress=False)
    assert loads == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "damaged"),
        (b"[]", "no saved model"),
        (b'{"format": "other"}', "no saved model"),
        (b'{"format": "eagre-llm", "version": 2}', "has version 2; this release reads version 1"),
        (b'{"format": "eagre-llm", "version": 1, "model": {}, "engine": {}}', "is missing"),
        (
            b'{"format": "eagre-llm", "version": 1, "model": {"name": "a", "sha256": "b", "size": 1},'
            b' "engine": {"warp": 1, "dtype": "float32"}}',
            "does not know: warp",
        ),
    ],
)
def test_a_file_that_cannot_be_used(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(SavedLLMError, match=message):
        LLM.load(tmp_path)


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(SavedLLMError, match="cannot be read: No such file"):
        LLM.load(tmp_path)


def test_wrong_settings_are_found_before_the_model_is_looked_for() -> None:
    with pytest.raises(TypeError, match="warp"):
        LLM("no-such-model", warp=9)
    with pytest.raises(ValueError, match="max_num_seqs is 0; it must be at least 1"):
        LLM("no-such-model", max_num_seqs=0)
    with pytest.raises(ValueError, match="num_hosts is 2; a model over several hosts is served with"):
        LLM("no-such-model", tensor_parallel=2, num_hosts=2, coordinator="node-0:9000")
    with pytest.raises(ModelStoreError, match="unknown model 'no-such-model'"):
        LLM("no-such-model")
