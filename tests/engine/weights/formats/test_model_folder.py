"""Model folders and the JSON in them: what is told of values that are missing or of the wrong kind."""

import os

import pytest

from engine.interface.errors import MAX_ERROR_LETTERS, ModelError, naming
from engine.weights.formats.model_folder import MAX_JSON_BYTES, MAX_TEXT_BYTES, JsonFile, ModelFolder

VALUES = {"text": "x", "flag": False, "count": 3, "share": 0.5, "table": {"inner": 1}, "none": None, "list": [1]} | {
    "huge": 10**400
}


@pytest.fixture
def file(tmp_path):
    return JsonFile(tmp_path / "config.json", VALUES)


def test_values_by_their_kind(file):
    assert (file.text("text"), file.flag("flag"), file.integer("count", least=1)) == ("x", False, 3)
    assert (file.positive_number("share"), file.positive_number("count")) == (0.5, 3.0)
    assert file.table("table").integer("inner", least=0) == 1
    assert file.value("list") == [1]
    assert set(file.names) == set(VALUES)


@pytest.mark.parametrize("key", ["none", "missing"])
def test_null_counts_as_absent(file, key):
    assert [file.text(key), file.flag(key), file.table(key), file.positive_number(key)] == [None] * 4
    assert file.integer(key, least=0) is None
    with pytest.raises(ModelError, match=f"config.json lacks {key}"):
        file.required_integer(key, least=0)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda file: file.text("count"), "count is 3; it must be a string"),
        (lambda file: file.flag("count"), "count is 3; it must be true or false"),
        (lambda file: file.table("list"), r"list is \[1\]; it must be an object"),
        (lambda file: file.integer("flag", least=0), "flag is false; it must be an integer from 0 to 2147483647"),
        (lambda file: file.integer("share", least=0), "share is 0.5; it must be an integer"),
        (lambda file: file.integer("count", least=4, most=9), "count is 3; it must be an integer from 4 to 9"),
        (lambda file: file.integer("count", least=0, most=2), "count is 3; it must be an integer from 0 to 2"),
        (lambda file: file.positive_number("flag"), "flag is false; it must be a number above 0"),
        (lambda file: file.positive_number("huge"), r"huge is 1000*\.\.\.; it must be a number above 0"),
        (lambda file: file.positive_number("text"), 'text is "x"; it must be a number above 0'),
    ],
)
def test_wrong_kinds_are_named(file, ask, words):
    with pytest.raises(ModelError, match=words):
        ask(file)


def test_long_values_are_shortened():
    error = JsonFile("config.json", {"key": "x" * 1000}).error("key", "it must be short")
    assert len(str(error)) < 150


def test_files_of_a_folder(tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "a": 1}')
    (tmp_path / "text").write_bytes("é".encode())
    os.mkfifo(tmp_path / "pipe")
    folder = ModelFolder(tmp_path)
    assert folder.config.value("a") == 1
    assert (folder.text("text"), folder.text("missing"), folder.json("missing")) == ("é", None, None)
    assert folder.file("pipe") is None  # which would wait for a writer
    with pytest.raises(ModelError, match="cannot be read"):
        folder.file("x" * 5000)


@pytest.mark.parametrize(
    ("limit", "read"),
    [
        (MAX_TEXT_BYTES, lambda folder: folder.text("large")),
        (MAX_JSON_BYTES, lambda folder: folder.json("large")),
    ],
)
def test_a_file_over_its_limit_is_refused(tmp_path, limit, read):
    (tmp_path / "config.json").write_text("{}")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(limit + 1)  # no disk is needed for it
    with pytest.raises(ModelError, match=f"large is larger than {limit} bytes"):
        read(ModelFolder(tmp_path))


def test_half_of_a_surrogate_pair_is_refused_and_a_whole_one_is_a_character(tmp_path):
    (tmp_path / "config.json").write_text('{"key": "\\ud83c\\udf0a"}')
    assert ModelFolder(tmp_path).config.text("key") == "\U0001f30a"
    (tmp_path / "config.json").write_text('{"key": ["\\ud83c"]}')
    with pytest.raises(ModelError, match="half of a surrogate pair"):
        ModelFolder(tmp_path)


def test_a_value_that_is_too_deep_to_be_shown_is_named_all_the_same():
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert "key is a value of many levels" in str(JsonFile("config.json", {"key": deep}).error("key", "no"))
    while deep:  # the interpreter's own way to free it takes a level of the stack for each list
        (deep,) = deep


def test_errors_name_the_model_and_are_not_long(tmp_path):
    for message in ("the field 'x' is 5", f"{tmp_path}: the field 'x' is 5", "x" * 10_000):
        with pytest.raises(ModelError) as caught, naming(tmp_path):
            raise ModelError(message)
        assert str(caught.value).count(str(tmp_path)) == 1
        assert len(str(caught.value)) < MAX_ERROR_LETTERS + 10
