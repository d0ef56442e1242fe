"""Names of models on the Hub, and which files of a repository they mean."""

from __future__ import annotations

import pytest

from server.model_sources.cache_folder import ModelStoreError
from server.model_sources.hub_files import choose
from server.model_sources.hub_records import HubId

FOLDER = ["config.json", "README.md", "tokenizer.json", "merges.txt", "training_args.bin"]
Q4_SHARDS = [f"Q4_K_M/m-Q4_K_M-0000{number}-of-00002.gguf" for number in (1, 2)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("owner/name", HubId("owner/name")),
        ("o-w.n_r/N.4-b_2", HubId("o-w.n_r/N.4-b_2")),
        ("owner/name:Q4_K_M", HubId("owner/name", "Q4_K_M")),
        ("owner/name:a/b-00001-of-00002.gguf", HubId("owner/name", "a/b-00001-of-00002.gguf")),
        ("owner/name@refs/pr/1", HubId("owner/name", None, "refs/pr/1")),
        ("owner/name:Q8_0@v1.0", HubId("owner/name", "Q8_0", "v1.0")),
    ],
)
def test_names_of_the_hub(text: str, expected: HubId) -> None:
    assert HubId.parse(text) == expected
    assert str(expected) == text


@pytest.mark.parametrize(
    "text",
    ["", "name", "a/b/c", "/name", "owner/", "../name", "owner/..", "./name", "owner/na me", "owner/namé",
     "owner/name\n", "owner/name:", "owner/name@", "owner/name@v1:Q8_0", "http://host/name"],
)  # fmt: skip
def test_what_is_no_name_of_the_hub(text: str) -> None:
    assert HubId.parse(text) is None


def chosen(name: str, files: list[str]) -> tuple[list[str], str | None]:
    hub_id = HubId.parse(name)
    assert hub_id is not None
    wanted = choose(hub_id, files)
    return list(wanted.files), wanted.main


def test_a_folder_ends_with_its_configuration() -> None:
    files = [*FOLDER, "model.safetensors", "model.fp32.safetensors", "sub/model.safetensors"]
    assert chosen("o/n", files) == (["model.safetensors", "tokenizer.json", "merges.txt", "config.json"], None)


def test_what_pictures_and_sentences_need_is_fetched() -> None:
    sees = ["preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json"]
    sentences = ["sentence_bert_config.json", "config_sentence_transformers.json", "modules.json"]
    parts = ["1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"]
    others = ["onnx/config.json", "2_Dense/pytorch_model.bin", "openvino/openvino_model.xml"]
    files = [*FOLDER, *sees, *sentences, *parts, *others, "vocab.txt", "tekken.json", "model.safetensors"]
    found, _ = chosen("o/n", files)
    assert {*sees, *sentences, *parts, "vocab.txt", "tekken.json"} < set(found)
    assert not set(others) & set(found)
    assert not set(parts) & set(chosen("o/n", [name for name in files if name != "modules.json"])[0])


def test_shards_of_a_folder() -> None:
    shards = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    files = [*FOLDER, *shards, "model.safetensors.index.json", "consolidated.safetensors"]
    found, main = chosen("o/n", files)
    assert found == [*shards, "tokenizer.json", "merges.txt", "model.safetensors.index.json", "config.json"]
    assert main is None


@pytest.mark.parametrize(
    ("name", "files", "expected"),
    [
        ("o/n", ["m-Q8_0.gguf"], ["m-Q8_0.gguf"]),
        ("o/n", ["m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-F16.gguf"], ["m-Q4_K_M.gguf"]),
        ("o/n", ["m-Q8_0.gguf", "mmproj-F16.gguf", "config.json"], ["m-Q8_0.gguf", "mmproj-F16.gguf"]),
        ("o/n", ["m-mmproj-bf16.gguf", "m-mmproj-f16.gguf", "m-Q8_0.gguf"], ["m-Q8_0.gguf", "m-mmproj-f16.gguf"]),
        ("o/n", ["mmproj-model.gguf", *Q4_SHARDS], Q4_SHARDS),  # in another folder
        ("o/n:Q8_0", ["m-Q8_0.gguf", "mmproj-m-Q8_0.gguf"], ["m-Q8_0.gguf", "mmproj-m-Q8_0.gguf"]),
        ("o/n", ["m-Q8_0.gguf", *Q4_SHARDS], Q4_SHARDS),
        ("o/n:q8_0", ["m-Q8_0.gguf", "m-Q4_K_M.gguf"], ["m-Q8_0.gguf"]),
        ("o/n:Q8_0", ["m.Q8_0.gguf", "m.IQ8_0.gguf"], ["m.Q8_0.gguf"]),
        ("o/n:Q4_K", ["m-Q4_K_M.gguf", "m-Q4_K.gguf"], ["m-Q4_K.gguf"]),
        ("o/n:UD-Q4_K_M", ["m-UD-Q4_K_M.gguf", "m-Q4_K_M.gguf"], ["m-UD-Q4_K_M.gguf"]),
        ("o/n:Q4_K_M", ["m-Q8_0.gguf", *Q4_SHARDS], Q4_SHARDS),
        (f"o/n:{Q4_SHARDS[1]}", ["m-Q8_0.gguf", *Q4_SHARDS], Q4_SHARDS),
        ("o/n:Q8_0", [*FOLDER, "model.safetensors", "m-Q8_0.gguf"], ["m-Q8_0.gguf"]),
    ],
)
def test_gguf_models(name: str, files: list[str], expected: list[str]) -> None:
    assert chosen(name, files) == (expected, expected[0])


@pytest.mark.parametrize(
    ("name", "files", "message"),
    [
        ("o/n", [], "o/n has neither a GGUF file nor config.json with safetensors"),
        ("o/n", [*FOLDER, "pytorch_model.bin"], "no other format is read"),
        ("o/n", ["a-Q8_0.gguf", "b-Q8_0.gguf"], r"o/n may mean 2 GGUF models; name the file, as in o/n:a-Q8_0.gguf"),
        ("o/n:Q8_0", ["a-Q8_0.gguf", "b-Q8_0.gguf"], r"may mean 2 .*there are a-Q8_0.gguf, b-Q8_0.gguf"),
        ("o/n:Q8_0", ["a-Q4_0.gguf"], "o/n has no GGUF model 'Q8_0'; it has a-Q4_0.gguf"),
        ("o/n:Q8_0", FOLDER, "no GGUF model 'Q8_0'; it has no GGUF files"),
        ("o/n:a.gguf", ["b.gguf"], "no GGUF model 'a.gguf'; it has b.gguf"),
        ("o/n:Q4_K_M", Q4_SHARDS[:1], r"o/n lacks Q4_K_M/m-Q4_K_M-00002-of-00002.gguf, shards of"),
    ],
)  # fmt: skip
def test_what_a_repository_does_not_hold(name: str, files: list[str], message: str) -> None:
    with pytest.raises(ModelStoreError, match=message):
        chosen(name, files)
